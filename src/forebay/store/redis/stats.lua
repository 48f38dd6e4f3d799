-- ARGV: now
return {'ok', totals()}
