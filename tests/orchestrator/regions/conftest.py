from tests.door import door as door
