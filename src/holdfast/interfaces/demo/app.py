"""The app that the worker processes load: `holdfast.interfaces.demo.app:hf`. Import it only in a worker process."""

from holdfast.interfaces.demo.config import DemoConfig
from holdfast.interfaces.demo.shop import open_shop

shop = open_shop(DemoConfig.from_environment())
hf = shop.hf
