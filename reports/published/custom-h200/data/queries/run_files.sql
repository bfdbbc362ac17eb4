SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'backends' AND run_id IN ('36fab87a491a', 'aebec2abff1d', '7d47cd6aa3bc', '9aba896a479f', '0dfc42200834', '3cc4534c77ce', '09a188651cf5', 'ea0d435d2ed5', '660c144b405e', 'ee64c3c37226') ORDER BY path
