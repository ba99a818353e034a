"""The demo: a shop takes orders while the things around it die, and nothing is lost.

Begin with `shop.py`: an application as you would write it. `story.py` is what happens to it.
"""
