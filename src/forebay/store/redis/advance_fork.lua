-- ARGV: now, incarnation, known_step, version
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local version, replayed_step = tonumber(ARGV[4]), totals[T_REPLAYED_STEP]
if version > replayed_step then
  return {'not_remade', version, replayed_step}
end
local made_by = batch_of(version)
if not made_by then
  return {'ok'}
end
local moved = false
for place = T_FORKS, #totals, 2 do
  if totals[place] > made_by and totals[place + 1] < version then
    totals[place + 1], moved = version, true
  end
end
if moved then
  add_total(T_WATCH, 1)
  flush()
end
return {'ok'}
