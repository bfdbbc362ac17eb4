SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'scaling' AND run_id IN ('abd6103e8ded', '241b2ba65b66', '9122474269a2', '660ddfad66af', '9906b56119a4', '76191f30ec70', '4244556081af', 'd3dc8295bae1', '0bc180ee186c', '103b30bc493b', 'a68308a6bc2c', '30ba51e956c3') ORDER BY path
