-- claim_digest.lua: gives the caller the digest of a channel, to be posted at once by this caller only.
--
-- The digest has the drops counted so far, and the counts of the digest before if that was not posted or if nobody can know. The
-- record says from then on that the digest is being posted. If the lease lapses, the digest is in doubt. Then a call claims nothing,
-- and gives the caller the digest in doubt to look for.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time
--   2   drops:due       sorted set: channel -> when its digest is due to be claimed
--   3   drops:dropping  sorted set: instance that may have unreported counts -> deadline of its next report
--   4   drops:counts:…  hash: the counts of the channel (see lib/digests.lua)
--   5   drops:top:…     sorted set: first-level category -> its largest count (see lib/digests.lua)
--
-- ARGV
--   channel; claim: a name that no other claim has
--   interval, quiet, kept, report_within (see count_drops.lua), lease, time that one instance has for looking (all
--   microseconds); how many entries a digest has at most
--   generation of the bucket of live limits, and the revision after the last change that the caller knows; 0 and 0 if it knows none
--
-- Returns the time; the stored form of a digest, '' if there is none; 0 if the caller has claimed the digest, otherwise the
-- time when the digest in doubt was claimed; and the keys of a mute (see keys_text), '' for other counts. A retry after a lost reply returns the first digest.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is claimed.

--@include lib/records lib/digests

local calls_key, due_key, dropping_key, counts_key, top_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, claim = ARGV[1], ARGV[2]
local interval, quiet, kept, report_within = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, looking, most_entries = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local generation, next_revision = tonumber(ARGV[10]), tonumber(ARGV[11])

local now = deployment_time(calls_key)
local due = tonumber(redis.call('ZSCORE', due_key, channel) or nil)
local upto = complete_until(dropping_key, now, report_within)
local latest = latest_due(now, interval, lease)
local head = read_head(redis.call('HGET', counts_key, HEAD), now, interval)
local rounds = read_rounds(redis.call('HGET', counts_key, ROUNDS))
local claimed = read_claimed(redis.call('HGET', counts_key, CLAIMED))
local keys = redis.call('HGET', counts_key, MUTED_KEYS) or ''
redis.call('ZCARD', top_key)
local is_ahead = due and due > latest
if claimed and claimed.lease_end > latest then
  claimed.lease_end = now
end

-- Sorts by count, largest first, then by path.
local function larger(a, b)
  if a.count ~= b.count then
    return a.count > b.count
  end
  return a.path < b.path
end

local function largest_of(entries)
  table.sort(entries, larger)
  for i = #entries, most_entries + 1, -1 do
    entries[i] = nil
  end
  return entries
end

-- Returns the largest entries. They are in the categories that have the largest counts.
local function largest_entries()
  local entries = {}
  for _, name in ipairs(redis.call('ZRANGE', top_key, 0, most_entries - 1, 'REV')) do
    local group = read_group(redis.call('HGET', counts_key, name) or '')
    for _, entry in ipairs(group.entries) do
      entries[#entries + 1] = entry
    end
    if group.more > 0 then
      entries[#entries + 1] = new_entry(name .. '.>', group.more, 0, '')
    end
  end
  return largest_of(entries)
end

-- Returns whether an instance missed its deadline since a time: it was killed with unreported counts.
local function lost_counts(since)
  return #redis.call('ZRANGE', dropping_key, integer(since), integer(now), 'BYSCORE', 'LIMIT', 0, 1) > 0
end

-- Adds the counts of the digest that was claimed before.
local function add_claimed(digest)
  local by_path = {}
  for _, entry in ipairs(digest.entries) do
    by_path[entry.path] = entry
  end
  for _, entry in ipairs(claimed.entries) do
    local same = by_path[entry.path]
    if same then
      merge_entry(entry, same) -- keeps the newer title
      same.count, same.opens, same.title, same.levels, same.by_level =
        entry.count, entry.opens, entry.title, entry.levels, entry.by_level
    else
      digest.entries[#digest.entries + 1] = entry
    end
  end
  if digest.total > 0 then
    digest.first, digest.last = math.min(digest.first, claimed.first), math.max(digest.last, claimed.last)
    digest.partial = 1 -- the paths without entry may be equal or different
  else
    digest.first, digest.last, digest.partial = claimed.first, claimed.last, claimed.partial
  end
  digest.paths = math.max(digest.paths, claimed.paths, #digest.entries)
  digest.total, digest.unpaired = digest.total + claimed.total, digest.unpaired + claimed.unpaired
  digest.since, digest.at_least = claimed.since, math.max(digest.at_least, claimed.at_least)
  digest.entries = largest_of(digest.entries)
  for _, of in ipairs(claimed.rounds) do
    add_rounds(digest.rounds, of.instance, of.first, of.last)
  end
  if claimed.state == 'carried' then
    digest.doubtful = claimed.total
  else
    digest.doubtful, digest.failures = claimed.doubtful, claimed.failures
  end
end

local text, cleared, doubted = '', nil, 0
if claimed and claimed.state == 'posting' and claimed.claim == claim then
  claimed.lease_end = now + lease
  due, text = claimed.lease_end, claimed_text(claimed)
elseif not due or due > upto and not is_ahead or claimed and claimed.state ~= 'carried' and claimed.lease_end > now then
  return { now, '', 0, '' }
elseif claimed and (claimed.state == 'posting' or claimed.state == 'doubt') then
  claimed.state, claimed.lease_end = 'doubt', now + looking
  due, text, doubted = claimed.lease_end, claimed_text(claimed), head.claimed_at
else
  due = counts_due(head, interval, quiet)
  due = due and is_ahead and upto or due
  if claimed and claimed.state == 'failed' or due and due <= upto then
    -- The changes of a digest that nobody may have seen are reported again, as far as this caller knows them: it may know fewer.
    local unreported = claimed and claimed.before_revision > 0 and claimed.from_revision or head.next_revision
    local from_revision = head.generation == generation and unreported or 0
    local before_revision = next_revision > 0 and math.max(next_revision, from_revision) or 0
    local digest = {
      claim = claim, state = 'posting', lease_end = now + lease, failures = 0, entries = largest_entries(),
      total = head.total, first = head.first, last = head.last, unpaired = head.unpaired, paths = head.paths,
      partial = head.partial, since = head.claimed_at, at_least = head.total > 0 and lost_counts(head.first) and 1 or 0,
      doubtful = 0, rounds = rounds, from_revision = from_revision, before_revision = before_revision,
    }
    if claimed then
      add_claimed(digest)
    end
    due, text = digest.lease_end, claimed_text(digest)
    cleared = redis.call('ZRANGE', top_key, 0, -1)
    local reported = before_revision > 0 and { generation, before_revision } or { head.generation, unreported }
    head = read_numbers('', HEAD_NAMES)
    head.claimed_at, head.generation, head.next_revision = now, reported[1], reported[2]
  end
end

check_due(due_key, kept)
redis.call('HDEL', counts_key, '')
if text ~= '' or claimed then
  redis.call('HSET', counts_key, CLAIMED, text ~= '' and text or claimed_text(claimed), HEAD, numbers_text(head, HEAD_NAMES))
  redis.call('PEXPIRE', counts_key, milliseconds(kept))
end
if cleared then
  redis.call('HDEL', counts_key, ROUNDS)
  in_pieces('HDEL', counts_key, cleared)
  in_pieces('ZREM', top_key, cleared)
end
set_due(due_key, channel, due, kept)
return { now, text, doubted, keys }
