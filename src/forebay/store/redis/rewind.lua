-- ARGV: now, step, token
-- Returns the incarnation, the last recorded step, and the steps after the given one, in order, each followed by
-- its entry.
local step = tonumber(ARGV[2])

local answer = answer_of(ARGV[3])
if answer then
  return {'ok', tonumber(answer), totals[T_RECORDED_STEP], with_entries(steps_after(step))}
end
local committed_step, recorded_step = totals[T_COMMITTED_STEP], totals[T_RECORDED_STEP]
local begun, incarnation = totals[T_BEGUN] == 1, totals[T_INCARNATION]
if step < committed_step then
  return {'forgotten', step, committed_step}
end
if begun and step > recorded_step then
  return {'ahead', step, recorded_step}
end

local version = step
if begun then
  version = math.min(step, totals[T_PUBLISHED_VERSION])
  incarnation = incarnation + 1
  totals[T_INCARNATION] = incarnation
  totals[#totals + 1], totals[#totals + 2] = incarnation, step
  count('rewound')
end
local unpublished_groups, last_step = 0, step
for _, name in ipairs(call('ZRANGE', steps_key, 0, -1)) do
  last_step = math.max(last_step, tonumber(name))
  if tonumber(name) > version then
    unpublished_groups = unpublished_groups + #ids_of(name)
  end
end
totals[T_BEGUN] = 1
totals[T_PUBLISHED_INCARNATION], totals[T_PUBLISHED_VERSION] = incarnation, version
totals[T_RECORDED_STEP], totals[T_REPLAYED_STEP] = last_step, step
totals[T_UNPUBLISHED_GROUPS] = unpublished_groups
add_total(T_WATCH, 1)
for _, group_id in ipairs(call('ZRANGE', prefix .. 'order', 0, -1)) do
  local group = find_named(group_id)
  if group[STATE] == TAKEN then
    group[STATE] = SETTLED
    save(group)
  elseif group[STATE] == OPEN and group[DEADLINE_WALL_S] ~= NONE then
    group[DEADLINE_WALL_S] = now_s + group[DEADLINE_S]
    save(group)
  end
  derived_before[group_id] = nil
end
flush()
keep_answer(ARGV[3], incarnation)
return {'ok', incarnation, last_step, with_entries(steps_after(step))}
