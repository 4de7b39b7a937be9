from tests.door import door as door
from tests.s3 import s3 as s3
