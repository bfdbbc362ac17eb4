SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'scaling' AND run_id IN ('3b10f185f73e', '248f7e19af41', '5b5a2d214574', '6817b1a2577e', 'a6ba82c18d40', 'a61baf5cde53', 'b2f333b1a693', 'c4b9f82dcc05', 'd389e7ca8614', '032eb100e137', '4c155ed8b362', '4d809f5a657e', 'fc7808170b90', 'f9281935dd5c') ORDER BY path
