SELECT * FROM reported WHERE study = 'backends' ORDER BY place, label, entry
