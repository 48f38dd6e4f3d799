-- ARGV: now, group, member, attempt, token
if answer_of(ARGV[5]) then
  return {'ok'}
end
local group = find(ARGV[2])
local at = holder(group, tonumber(ARGV[3]), tonumber(ARGV[4]))
if at then
  set_member(group, at, FREE)
  count('released')
  save(group)
  flush()
  keep_answer(ARGV[5], '')
end
return {'ok'}
