-- ARGV: now
-- Returns the totals, names and records of the groups, what is not there as the records say, and what lies under
-- the indexes.
local names, groups, wrong = call('ZRANGE', prefix .. 'groups', 0, -1), {}, {}
for place, group_id in ipairs(names) do
  local group = find(group_id)
  if not group or call('EXISTS', prefix .. 't:' .. group_id) == 0 then
    wrong[#wrong + 1] = group_id
  end
  groups[place] = group and call('GET', group_key(group_id)) or ''
  for member = 0, group and group[GROUP_SIZE] - 1 or -1 do
    local at = place_of(member)
    local num_bytes = group[at + M_STATE] == ARRIVED and group[at + NUM_BYTES] or 0
    if call('STRLEN', payload_key(group_id, member)) ~= num_bytes then
      wrong[#wrong + 1] = group_id .. '/' .. member
    end
  end
  derived_before[group_id] = nil
end
local function scored(name)
  return call('ZRANGE', prefix .. name, 0, -1, 'WITHSCORES')
end
return {
  'ok', read_totals(), names, groups, wrong, scored('order'), scored('claimable'), scored('due'),
  call('HGETALL', prefix .. 'summaries'), call('ZRANGE', steps_key, 0, -1), call('HGETALL', entries_key),
  call('HKEYS', batches_key),
}
