-- ARGV: now, incarnation, known_step, group, token
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local group = not answer_of(ARGV[5]) and find(ARGV[4])
if not group or group[STATE] == SETTLED then
  return {'ok'}
end
if group[STATE] ~= TAKEN then
  return {'not_taken', ARGV[4], state_names[group[STATE]]}
end
group[STATE] = SETTLED
save(group)
flush()
keep_answer(ARGV[5], '')
return {'ok'}
