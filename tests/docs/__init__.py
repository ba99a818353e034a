"""The tutorial, the pages for users of other libraries, and the built site."""
