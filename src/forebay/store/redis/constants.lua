-- Names in capitals, in every script: a number or a string is put in their place when the scripts are read,
-- since a local variable would be looked up for each function that uses it, in each run.

-- The head of a group's record. packing.unpack_group reads the same.
GROUP_SIZE = 1
SERIAL = 2
MIN_GROUP_SIZE = 3
MIN_INCARNATION = 4
MIN_VERSION = 5
DEADLINE_S = 6
MEMBER_BYTES = 7
MAX_ATTEMPTS = 8
INCARNATION = 9
DISPATCHED_S = 10
STATE = 11
DEADLINE_WALL_S = 12
ENVIRONMENT = 13
HEAD = 13
HEAD_FORMAT = '>dddddddddddds'

-- The fields of a member, from the place before its first.
M_STATE = 1
ATTEMPT = 2
LEASE_EXPIRES_S = 3
M_INCARNATION = 4
M_VERSION = 5
NUM_BYTES = 6
TRAJECTORY_ID = 7
ACTOR = 8
MEMBER_FIELDS = 8
MEMBER_FORMAT = 'ddddddss'

-- States of a group, and of a member.
OPEN = 1
SETTLED = 2
TAKEN = 3
RECORDED = 4
FREE = 1
LEASED = 2
ARRIVED = 3
FAILED = 4
MISSING = 5

-- Where there is no version or no time.
NONE = -1

-- How many arguments describe one group to be dispatched.
SPEC_FIELDS = 11
-- And how many describe one put.
PUT_FIELDS = 10
MAX_COUNTERS = 256
MAX_DUE = 1000
-- Most arguments that the script engine's stack takes.
MAX_UNPACKED = 4000
TOKEN_LIFE_S = 3600
