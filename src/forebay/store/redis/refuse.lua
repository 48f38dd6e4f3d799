-- ARGV: now, reason
count_reason('rejected', ARGV[2])
flush()
return {'ok'}
