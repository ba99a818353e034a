"""The app as its worker processes load it: `holdfast.interfaces.demo.app:hf`. Import it only in one of them."""

from holdfast.interfaces.demo.place import Place
from holdfast.interfaces.demo.shop import open_shop

shop = open_shop(Place.from_environment())
hf = shop.hf
