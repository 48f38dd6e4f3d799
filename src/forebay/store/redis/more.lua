-- ARGV: now, watch, first, last
-- Returns another page, or nothing if the store has changed since the look that it belongs to.
if totals[T_WATCH] ~= tonumber(ARGV[2]) then
  return {'ok'}
end
return {'ok', page(ARGV[3], ARGV[4])}
