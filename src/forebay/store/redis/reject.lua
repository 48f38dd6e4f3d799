-- ARGV: now, incarnation, known_step, group, reason, then SPEC_FIELDS for a replacement, if there is one
local incarnation = tonumber(ARGV[2])
local refusal = fence(incarnation, tonumber(ARGV[3]))
if refusal then
  return refusal
end
local group = find(ARGV[4])
if not group then
  return {'ok'}
end
if group[STATE] ~= TAKEN then
  return {'not_taken', ARGV[4], state_names[group[STATE]]}
end
local replaced = #ARGV > 5
if replaced and call('EXISTS', group_key(ARGV[7])) == 1 then
  return {'old_name', ARGV[7]}
end
drop(group, 'rejected', ARGV[5])
if replaced then
  add_group(6, incarnation)
  totals[T_NEXT_SERIAL] = math.max(totals[T_NEXT_SERIAL], tonumber(ARGV[6]) + 1)
end
flush()
return {'ok'}
