-- ARGV: now, incarnation, known_step, watch, last
-- Returns the watch and, unless it is the one given, how many groups are live, and a page of them up to a place.
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
settle_due()
flush()
local watch = totals[T_WATCH]
if watch == tonumber(ARGV[4]) then
  return {'ok', watch}
end
return {'ok', watch, call('ZCARD', prefix .. 'order'), page(0, ARGV[5])}
