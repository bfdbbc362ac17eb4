SELECT certificate, name, count(*) AS checks, count(*) FILTER (NOT passed) AS failed
FROM verifications WHERE certificate IN (SELECT certificate FROM admissions WHERE study = 'seed-004')
GROUP BY certificate, name ORDER BY certificate, min(place)
