-- ARGV: now, incarnation, known_step, token, num_take, groups to take, groups to reject as stale
-- Returns 1, or 0 with nothing done if a group has changed meanwhile.
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
if answer_of(ARGV[4]) then
  return {'ok', 1}
end
local groups = {}
for at = 6, #ARGV do
  local group = find(ARGV[at])
  if not group or group[STATE] ~= SETTLED then
    return {'ok', 0}
  end
  groups[#groups + 1] = group
end
for place, group in ipairs(groups) do
  if place <= tonumber(ARGV[5]) then
    group[STATE] = TAKEN
    save(group)
  else
    drop(group, 'rejected', 'stale')
  end
end
flush()
keep_answer(ARGV[4], '')
return {'ok', 1}
