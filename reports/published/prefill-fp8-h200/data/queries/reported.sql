SELECT * FROM reported WHERE study = 'prefill-fp8' ORDER BY place, label, entry
