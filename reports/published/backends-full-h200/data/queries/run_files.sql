SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'backends' AND run_id IN ('2c06e6dd0497', 'ee61bfab030f', '67b30dfc808d', '8161db7ddbae', '6a852ff30ddc', '61c18873ca83', '20efea5f50f1', 'cb562269148f', 'ce498b46c369', '4a032d3a772e') ORDER BY path
