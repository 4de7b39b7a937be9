from tests.s3 import s3 as s3
