-- ARGV: now, group, member, attempt, reason
local group = find(ARGV[2])
local at = holder(group, tonumber(ARGV[3]), tonumber(ARGV[4]))
if at then
  count_reason('errors', ARGV[5])
  end_attempt(group, at)
  close_or_save(group)
  flush()
end
return {'ok'}
