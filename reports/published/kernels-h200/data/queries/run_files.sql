SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'kernels' AND run_id IN ('934a50c6825f', '5d6d16d956f6', 'd4ce8e27c36d', 'b99bf89e6547', '865a5d6d0b60', 'ec2acc04c9c0', '90cb531baed7', 'b3c941277a21', '6c7c15e4fd34', '5efe626b2ea2', '50ce6041a607', '75847fa96efc', '25d138833949', 'd39b0d772f8c', 'b491c403e93a', '7dba08b5a9e9', '458c39aa4359') ORDER BY path
