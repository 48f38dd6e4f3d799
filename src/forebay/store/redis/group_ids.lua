-- ARGV: now
-- Returns the names of the groups that are not forgotten, in order of dispatch.
return {'ok', call('ZRANGE', prefix .. 'groups', 0, -1)}
