-- resolve.lua: gives resolved events the pairs that they resolve, and leases the events. They take no slots.
--
-- A pair belongs to the event that asks first, until its delivery is recorded: whoever gets the message again finds it. The
-- script is idempotent by event, as decide.lua is, and a call that is repeated because its reply was lost gets the same
-- answer. The order within a batch counts.
--
-- KEYS
--   1  calls        sorted set: nonce of a call that granted something -> its time
--   2  leased       sorted set: record -> end of its lease (see parts/doubt.lua)
--   3  done         sorted set: record -> when it may be forgotten
--   4  message      sorted set: record -> stamp of its stored message
--   5… books of pairs, see read_books
--
-- ARGV
--   nonce, lease, retention (both microseconds), books (see read_books)
--   for each event: record, stamp, number of its book, pair, stamp of the stored message, whatever its record is
--
-- Returns the time, then for each event
--   verdict  see below
--   time     microseconds until the lease ends (admitted, repeated) or it is worth asking again (leased), else 0
--   receipt  of the message that it resolves (admitted, repeated), else ''; also if that has expired meanwhile
--   doubt    1 if it was taken over in doubt (repeated), else 0
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is granted.

local ADMITTED = 1 -- the pair is the event's; leased to the caller
local REPEATED = 4 -- it has been, and the lease has lapsed or was given back; leased to the caller now
local LEASED = 5 -- someone else is delivering it, or what it resolves
local DONE = 6 -- this stored message was delivered
local DUPLICATE = 7 -- another stored message with this ID has resolved something
local UNPAIRED = 9 -- there is nothing to resolve

-- When to look again at a delivery that nobody has taken over yet.
local LAPSED_WAIT = SECOND

local calls_key, leased_key, done_key, message_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_argument = reader(ARGV, 0)
local nonce, lease, retention = next_argument(), tonumber(next_argument()), tonumber(next_argument())

local now, newest_call, ran_ahead = deployment_time(calls_key)
local books = read_books(next_argument, reader(KEYS, 4), now, 0)
local granted_at = tonumber(redis.call('ZSCORE', calls_key, nonce)) -- by this very call when it ran before
if granted_at and granted_at <= now - NONCE_KEPT then
  granted_at = nil
end

local leases, stamps, taken_anew = {}, {}, {}
local granted_stamp = {} -- record -> stamp of the events that this call grants

local function grant(record, stamp, is_forgotten)
  granted_stamp[record] = stamp
  leases[#leases + 1] = integer(now + lease)
  leases[#leases + 1] = record
  if stamp ~= '' then
    stamps[#stamps + 1] = stamp
    stamps[#stamps + 1] = record
  end
  if is_forgotten then
    taken_anew[#taken_anew + 1] = record
  end
end

-- When the lease of an event that is not done ends, or ended; nil if nobody asks for the event any more.
local function lease_of(record)
  local lease_end = tonumber(redis.call('ZSCORE', leased_key, record))
  return lease_end and lease_end > now - retention and lease_end or nil
end

-- Takes an open pair away. What fires again after the event that resolves it stays open.
local function take_pair(book, pair, entry, stored)
  local newest_stamp, _, newest = read_open(entry)
  if newest ~= '' and tonumber(newest_stamp) > tonumber(stored) then
    put_pair(book, pair, open_text(newest_stamp, newest, ''), entry.expires)
  else
    remove_pair(book, pair)
  end
end

-- Returns a verdict, a time and whether the event is in doubt.
local function judge(record, stamp, book, pair, stored)
  local lease_end, done_until = lease_of(record), tonumber(redis.call('ZSCORE', done_key, record))
  local known_stamp = redis.call('ZSCORE', message_key, record)
  local taken, entry = read_pair(book, taken_pair(record)), read_pair(book, pair)
  local is_done = done_until and done_until > now
  local _, first = read_open(entry)
  if granted_stamp[record] then
    return granted_stamp[record] == stamp and LEASED or DUPLICATE, granted_stamp[record] == stamp and lease or 0
  elseif (is_done or lease_end) and stamp ~= '' and tonumber(known_stamp) ~= tonumber(stamp) then
    return DUPLICATE, 0
  elseif is_done then
    return DONE, 0
  elseif lease_end and granted_at and lease_end == granted_at + lease then
    granted_stamp[record] = stamp
    if mark_of(leased_key, record) == lease_end then
      return REPEATED, lease_end - now, true
    end
    return ADMITTED, lease_end - now
  elseif lease_end and lease_end > now then
    return LEASED, math.ceil(lease_end - now)
  elseif lease_end or taken then
    grant(record, stamp, done_until)
    if lease_end and ended_in_doubt(leased_key, record, lease_end) then
      leases[#leases + 1] = integer(now + lease)
      leases[#leases + 1] = doubt_of(record)
      return REPEATED, lease, true
    end
    return REPEATED, lease
  elseif first then
    take_pair(book, pair, entry, stored)
    put_pair(book, taken_pair(record), open_text('0', first, ''), entry.expires)
    grant(record, stamp, done_until)
    return ADMITTED, lease
  end
  local under_way = pair_text(entry, UNDER_WAY)
  local its_end = under_way and lease_of(under_way)
  if its_end then
    return LEASED, its_end > now and math.ceil(its_end - now) or LAPSED_WAIT
  end
  local waits_until = awaited(entry)
  if waits_until then
    return LEASED, math.max(waits_until - now, LAPSED_WAIT)
  end
  return UNPAIRED, 0
end

local reply = { now }
for record in next_argument do
  local stamp, book = next_argument(), books[tonumber(next_argument())]
  local verdict, time, in_doubt = judge(record, stamp, book, next_argument(), next_argument())
  local is_granted = verdict == ADMITTED or verdict == REPEATED
  reply[#reply + 1] = verdict
  reply[#reply + 1] = time
  local _, receipt = read_open(read_pair(book, taken_pair(record)))
  reply[#reply + 1] = is_granted and receipt or ''
  reply[#reply + 1] = in_doubt and 1 or 0
end
if #leases == 0 then
  return reply
end

check_rights(leased_key, lease + retention)
if ran_ahead then
  trim_ahead(calls_key, now)
end
redis.call('ZADD', leased_key, 'XX', 0, '')
write_books(books)
in_pieces('ZREM', done_key, taken_anew)
redis.call('ZADD', calls_key, integer(now), nonce)
if not newest_call then
  redis.call('PEXPIRE', calls_key, milliseconds(retention))
end
in_pieces('ZADD', leased_key, leases)
redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
in_pieces('ZADD', message_key, stamps)
redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
return reply
