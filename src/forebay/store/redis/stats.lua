-- ARGV: now
return {'ok', read_totals()}
