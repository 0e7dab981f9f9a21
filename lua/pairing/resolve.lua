-- resolve.lua: gives the pairs to the resolved events that end them, and leases these events. They take no slots.
--
-- A pair belongs to the first event that asks for it, until the event's delivery is recorded: whoever gets the event's message
-- again finds the pair. The script is idempotent by event, as decide.lua is, and a call that is repeated because its reply was
-- lost gets the same answer. A batch is processed in its order.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   leased   sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done     sorted set: event key of a delivered event -> when its record expires
--   4   message  sorted set: event key -> version of the stored message
--   5…  books of pairs, see read_books
--
-- ARGV
--   nonce, lease, retention (both microseconds), books (see read_books)
--   for each event: event key, version, number of its book, pair, version of the stored message also if the event key has it
--
-- Returns the time, then for each event
--   verdict  see lib/verdicts.lua
--   time     microseconds until the lease ends (ADMITTED, RECLAIMED) or asking again is worthwhile (LEASED), else 0
--   receipt  ADMITTED, RECLAIMED: of the message that the event resolves, '' if the receipt has expired; else ''
--   doubt    RECLAIMED: 1 if the event is in doubt; else 0
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is granted.

--@include lib/verdicts lib/records lib/doubt lib/pairs

-- When to ask again about a firing event that has no lease now.
local LAPSED_WAIT = SECOND

local calls_key, leased_key, done_key, message_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_argument = reader(ARGV, 0)
local nonce, lease, retention = next_argument(), tonumber(next_argument()), tonumber(next_argument())

local now, ran_ahead = deployment_time(calls_key)
local books = read_books(next_argument, reader(KEYS, 4), now, 0)
local granted_at = tonumber(redis.call('ZSCORE', calls_key, nonce)) -- when this very call ran before
if granted_at and granted_at <= now - NONCE_KEPT then
  granted_at = nil
end

local leases, versions, taken_anew = {}, {}, {}
local granted_version = {} -- event key -> version, of the events that this call leases

local function grant(event_key, version, is_forgotten)
  granted_version[event_key] = version
  leases[#leases + 1] = integer(now + lease)
  leases[#leases + 1] = event_key
  if version ~= '' then
    versions[#versions + 1] = version
    versions[#versions + 1] = event_key
  end
  if is_forgotten then
    taken_anew[#taken_anew + 1] = event_key
  end
end

-- Returns the end of the latest lease of an event that is not done, or nil if its record has expired.
local function lease_of(event_key)
  local lease_end = tonumber(redis.call('ZSCORE', leased_key, event_key))
  return lease_end and lease_end > now - retention and lease_end or nil
end

-- Takes an open pair. If it fired again after the resolved event was stored, the pair stays open for the newest message.
local function take_pair(book, pair, entry, stored)
  local newest_version, _, newest = read_open(entry)
  if newest ~= '' and tonumber(newest_version) > tonumber(stored) then
    put_pair(book, pair, open_text(newest_version, newest, ''), entry.expires)
  else
    remove_pair(book, pair)
  end
end

-- Returns the verdict, the time, and whether the event is in doubt.
local function evaluate(event_key, version, book, pair, stored)
  local lease_end, done_until = lease_of(event_key), tonumber(redis.call('ZSCORE', done_key, event_key))
  local known_version = redis.call('ZSCORE', message_key, event_key)
  local taken, entry = read_pair(book, taken_pair(event_key)), read_pair(book, pair)
  local is_done = done_until and done_until > now
  local _, first = read_open(entry)
  if granted_version[event_key] then
    return granted_version[event_key] == version and LEASED or DUPLICATE, granted_version[event_key] == version and lease or 0
  elseif (is_done or lease_end) and version ~= '' and tonumber(known_version) ~= tonumber(version) then
    return DUPLICATE, 0
  elseif is_done then
    return DONE, 0
  elseif lease_end and granted_at and lease_end == granted_at + lease then
    granted_version[event_key] = version
    if mark_of(leased_key, event_key) == lease_end then
      return RECLAIMED, lease_end - now, true
    end
    return ADMITTED, lease_end - now
  elseif lease_end and lease_end > now then
    return LEASED, math.ceil(lease_end - now)
  elseif lease_end or taken then
    grant(event_key, version, done_until)
    if lease_end and ended_in_doubt(leased_key, event_key, lease_end) then
      leases[#leases + 1] = integer(now + lease)
      leases[#leases + 1] = doubt_of(event_key)
      return RECLAIMED, lease, true
    end
    return RECLAIMED, lease
  elseif first then
    take_pair(book, pair, entry, stored)
    put_pair(book, taken_pair(event_key), open_text('0', first, ''), entry.expires)
    grant(event_key, version, done_until)
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
for event_key in next_argument do
  local version, book = next_argument(), books[tonumber(next_argument())]
  local verdict, time, in_doubt = evaluate(event_key, version, book, next_argument(), next_argument())
  local is_granted = verdict == ADMITTED or verdict == RECLAIMED
  reply[#reply + 1] = verdict
  reply[#reply + 1] = time
  local _, receipt = read_open(read_pair(book, taken_pair(event_key)))
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
-- Unlike note_call, this does not shorten how long decide.lua keeps the calls.
local is_first_call = redis.call('ZCARD', calls_key) == 0
redis.call('ZADD', calls_key, integer(now), nonce)
if is_first_call then
  redis.call('PEXPIRE', calls_key, milliseconds(retention))
end
add_and_keep(leased_key, leases, lease + retention)
add_and_keep(message_key, versions, lease + retention)
return reply
