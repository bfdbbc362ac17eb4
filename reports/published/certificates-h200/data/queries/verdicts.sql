SELECT c.*, e.* EXCLUDE (certificate)
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key
WHERE c.key IN (SELECT certificate FROM backends)
ORDER BY c.attention, c.device_name, c.shape, c.created_at, c.key
