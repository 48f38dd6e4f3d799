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

-- The totals: cursors, then how many groups are in each state, then sums over the groups, then two numbers for
-- each fork. packing.unpack_totals reads the same.
T_BEGUN = 1
T_INCARNATION = 2
T_PUBLISHED_INCARNATION = 3
T_PUBLISHED_VERSION = 4
T_NEXT_SERIAL = 5
T_COMMITTED_STEP = 6
T_RECORDED_STEP = 7
T_REPLAYED_STEP = 8
T_UNPUBLISHED_GROUPS = 9
T_WATCH = 10
T_STATES = 10
T_LEASED = 15
T_LIVE_TRAJECTORIES = 16
T_RETAINED_TRAJECTORIES = 17
T_LIVE_BYTES = 18
T_RETAINED_BYTES = 19
T_FORKS = 20

-- What ends every record: the beginning of the SHA-1 of its key and itself.
CHECKSUM_BYTES = 16

-- Where there is no version or no time.
NONE = -1

-- How many arguments describe one group to be dispatched.
SPEC_FIELDS = 11
-- And how many describe one put.
PUT_FIELDS = 3
-- What became of a put. store.RECEIPTS reads the same.
R_ACCEPTED = 1
R_DUPLICATE = 2
R_LATE = 3
MAX_COUNTERS = 256
MAX_DUE = 1000
-- Most arguments that the script engine's stack takes.
MAX_UNPACKED = 4000
MAX_UNPACKED_MEMBERS = 500
TOKEN_LIFE_S = 3600
