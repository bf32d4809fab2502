-- The matching state in Redis, first half: what is read and chosen. The second half, remember.lua, is appended to it.
-- A call takes one exchange after another, atomically. The same rules as choose.py, verdict.py and memory.py, which
-- say why; tests run both on the same traffic and compare.
--
-- KEYS[1] = "clawback:m:{<slot>}:", the prefix of every key used here: they share its hash tag, so one script works on
-- Redis Cluster. ARGV = limits (msgpack), then four for each exchange: plan (msgpack), light, heavy, answer (opaque). Every
-- key gets a TTL. The reply has one entry an exchange.
--   x:<id>   hash: c candidate, l light, a answer, n who answered it, r the result as first given
--   h:<id>   request, response and capture
--   k:<key>  a line an exchange under the key, newest first; then "?<level> <id>" for answers that wait for their turn
--   s:<session> hash: n newest turn, t its time, h brings history, z bytes     e:<session> its ids, oldest first
--   lru      sessions by the time they were last seen
local prefix = KEYS[1]
local limits = cmsgpack.unpack(ARGV[1])
local call = redis.call
local tomb, keep = math.ceil(limits.tombstone_seconds), math.ceil(2 * limits.ttl_seconds + 3600)
local MAX_EXPIRED = 8
local plan, light, heavy, answer, seen_ids, cache, bodies  -- of the exchange at hand

local function begin(n)
  plan, light, heavy, answer = cmsgpack.unpack(ARGV[n]), ARGV[n + 1], ARGV[n + 2], ARGV[n + 3]
  seen_ids, cache, bodies = {}, {}, {}
  for _, id in ipairs(plan.seen) do seen_ids[id] = true end
end

local function get(id)
  if cache[id] == nil then
    local raw = call('HMGET', prefix .. 'x:' .. id, 'c', 'n', 'l')
    local one = raw[1] and cmsgpack.unpack(raw[1]) or false
    if one then
      one.light, one.answered = raw[3] or '', {}
      for other in string.gmatch(raw[2] or '', '[^\n]+') do one.answered[#one.answered + 1] = other end
    end
    cache[id] = one
  end
  return cache[id] or nil
end

-- A candidate as it is stored; who answered it and its light part lie beside it.
local function packed(one)
  local answered, small = one.answered, one.light
  one.answered, one.light = nil, nil
  local raw = cmsgpack.pack(one)
  one.answered, one.light = answered, small
  return raw
end

local function body(id)
  if bodies[id] == nil then bodies[id] = call('GET', prefix .. 'h:' .. id) or '' end
  return bodies[id]
end

local function under(key)
  local found = {}
  local ids = call('GET', prefix .. 'k:' .. key)
  if ids then
    for id in string.gmatch(ids, '[^\n]+') do
      local one = string.byte(id) ~= 63 and get(id)
      if one then found[#found + 1] = one end
    end
  end
  return found
end

-- Put the exchange under a key. Gives the answers that wait there, or nil.
local function put(key)
  local at = prefix .. 'k:' .. key
  local old = call('SET', at, plan.id, 'EX', tomb, 'GET')
  if not old then return nil end
  local ids, n, waiting = {plan.id}, 1, nil
  for id in string.gmatch(old, '[^\n]+') do
    if string.byte(id) == 63 then
      waiting = waiting or {}
      waiting[#waiting + 1] = id
    elseif id ~= plan.id and n < limits.max_entries then
      n = n + 1
      ids[n] = id
    end
  end
  for _, line in ipairs(waiting or {}) do ids[#ids + 1] = line end
  call('SET', at, table.concat(ids, '\n'), 'EX', tomb)
  return waiting
end

local function wait_under(key, level)
  local at = prefix .. 'k:' .. key
  local old = call('GET', at)
  local line = '?' .. level .. ' ' .. plan.id
  local _, n = string.gsub('\n' .. (old or ''), '\n%?', '')
  if n < limits.max_entries then call('SET', at, old and old .. '\n' .. line or line, 'EX', tomb) end
end

-- choose.py ---------------------------------------------------------------------------------------------------------
local function eligible(one)
  return one.id ~= plan.id and one.delivered and one.now < plan.now
    and one.done <= plan.now + limits.slack_seconds and (plan.same == '' or one.same ~= plan.same)
end

local tests = {
  function(c) for _, id in ipairs(c.ids) do if seen_ids[id] then return true end end return false end,
  function(c) return c.named == plan.session end,
  function(c) return c.kind == 'main' end,
  function(c) return c.prompt == plan.prompt end,
  function(c) return #c.answered == 0 end,
}

local function narrow(those, level, at)
  local narrowed = #those > 1
  if narrowed then
    for _, test in ipairs(tests) do
      local kept = {}
      for _, c in ipairs(those) do if test(c) then kept[#kept + 1] = c end end
      if #kept > 0 then those = kept end
    end
  end
  local one = those[1]
  for _, c in ipairs(those) do
    if c.session ~= one.session or c.named ~= one.named then return {level = '', at = -1, reason = 'ambiguous'} end
  end
  return {found = one, level = level, at = at, narrowed = narrowed, reason = 'first_request'}
end

local function pick(key, level, at, also)
  local those = {}
  for _, c in ipairs(under(key)) do
    if eligible(c) and (not also or also(c)) then those[#those + 1] = c end
  end
  if #those == 0 then return nil end
  return narrow(those, level, at)
end

local function nothing(reason) return {level = '', at = -1, reason = reason} end

local function leaders(votes, known, order, ends)
  local most, lead = 0, {}
  for _, id in ipairs(order) do most = math.max(most, votes[id]) end
  local ending, summaries = {}, true
  for _, id in ipairs(ends) do ending[id] = true end
  for _, id in ipairs(order) do
    if votes[id] == most then
      lead[#lead + 1] = known[id]
      summaries = summaries and known[id].kind == 'compaction' and not ending[id]
    end
  end
  if summaries then
    local best, replies = 1, {}
    for _, id in ipairs(ends) do
      if known[id].kind == 'main' and votes[id] >= 2 then best = math.max(best, votes[id]) end
    end
    for _, id in ipairs(ends) do
      if best >= 2 and known[id].kind == 'main' and votes[id] == best then replies[#replies + 1] = known[id] end
    end
    if #replies > 0 then most, lead = best, replies end
  end
  table.sort(lead, function(a, b) if a.now ~= b.now then return a.now > b.now end return a.id < b.id end)
  return lead, most
end

local HEADLESS = 3
local function has_head(one, there)
  for _, head in ipairs(one.heads) do if there[head] then return true end end
  return false
end

local function piece_of(one, there, level)
  if level == 'bridge' then return one.kind == 'compaction' end
  return has_head(one, there)
end

local function by_lines(groups, level, at)
  local there = {}
  for _, group in ipairs(groups) do
    for _, key in ipairs(group) do there[string.sub(key, 1, 8)] = true end
  end
  local votes, known, order, ends, sure = {}, {}, {}, {}, false
  for _, group in ipairs(groups) do
    for _, key in ipairs(group) do
      local all, those = under(key), {}
      for _, c in ipairs(all) do
        if eligible(c) and piece_of(c, there, level) then those[#those + 1] = c end
      end
      if #those == 1 and #all == 1 then sure = true end
      local first = #ends == 0
      for _, c in ipairs(those) do
        if first then ends[#ends + 1] = c.id end
        if not votes[c.id] then order[#order + 1] = c.id end
        votes[c.id] = (votes[c.id] or 0) + 1
        known[c.id] = c
      end
    end
    local lead, most = leaders(votes, known, order, ends)
    if #lead > 0 and most >= (not has_head(lead[1], there) and HEADLESS or sure and 1 or 2) then
      local found = narrow(lead, level, at)
      if found.found then return found end
    end
  end
  return nothing(#order > 0 and 'ambiguous' or 'reply_not_served')
end

local function brought_all(one, passed)
  local known = {}
  for _, mark in ipairs(one.brought) do known[mark] = true end
  for _, mark in ipairs(passed) do if not known[mark] then return false end end
  return true
end

local function by_slots()
  local passed, doubt, open = {}, nil, 0
  local function none(reason)
    local choice = nothing(reason)
    choice.open = open
    return choice
  end
  for i, slot in ipairs(plan.slots) do
    local found
    for n, probe in ipairs(slot.probes) do
      if i == 1 then open = n - 1 end
      found = pick(probe[2], probe[1], i - 1)
      if found then break end
    end
    if i == 1 and not found then open = #slot.probes end
    if not found or not found.found then
      doubt = doubt or (found and 'ambiguous')
      local row = {}
      for j = i, #plan.slots do
        if plan.slots[j].run == slot.run then row[#row + 1] = plan.slots[j].lines end
      end
      local pieces = by_lines(row, 'lines', i - 1)
      found = pieces.found and pieces or nil
    end
    if found and found.found then
      return brought_all(found.found, passed) and found or none('reply_not_served')
    end
    if not slot.filler and slot.mark == '' then break end
    if not slot.filler then passed[#passed + 1] = slot.mark end
  end
  return none(doubt or (#plan.slots > 0 and 'reply_not_served' or plan.bare and 'first_request' or 'empty_reply'))
end

local function bare()
  if plan.session == '' then return nothing('first_request') end
  local session = call('HMGET', prefix .. 's:' .. plan.session, 'n', 'h')
  local newest = session[1] and not session[2] and get(session[1])
  if not newest or not eligible(newest) or newest.prompt ~= plan.prompt or newest.calls ~= plan.results then
    return nothing('first_request')
  end
  return {found = newest, level = 'newest', at = -1, narrowed = false, reason = 'first_request'}
end

local function choose()
  if plan.previous ~= '' then
    return pick(plan.previous, 'response', -1) or nothing('reply_not_served')
  end
  for _, key in ipairs(plan.dropped) do
    local found = pick(key, 'dropped', -1, function(c) return c.kind == 'main' end)
    if found and found.found then return found end
  end
  local choice = by_slots()
  if not choice.found and #plan.bridge > 0 then
    local bridged = by_lines({plan.bridge}, plan.kind == 'main' and 'bridge' or 'lines', -1)
    if bridged.found then return bridged end
  end
  if not choice.found and plan.bare then return bare() end
  return choice
end

local function delegated()
  for _, key in ipairs(plan.spawn) do
    for _, one in ipairs(under(key)) do
      local age = plan.now - one.done
      if one.id ~= plan.id and age >= -limits.slack_seconds and age <= limits.spawn_seconds
        and one.prompt ~= plan.prompt then return true end
    end
  end
  return false
end

local function same_before()
  if plan.same == '' then return nil end
  for _, c in ipairs(under(plan.same)) do
    if c.id ~= plan.id and c.now <= plan.now and c.named == plan.session then return c end
  end
end

local function again(before, found)
  if not before then return 'main', '', '' end
  local turn = found and found.id or ''
  if before.bound ~= turn and before.previous ~= turn then return 'main', '', '' end
  local lost = not before.delivered or before.outcome ~= 'completed' or before.done > plan.now
  if lost or plan.retries > 0 then
    return 'retry', (before.bound ~= '' and before.bound == turn) and before.id or '', ''
  end
  if turn == '' and plan.session == '' then return 'main', '', '' end
  return 'regeneration', '', before.id
end

local function edited(found)
  if plan.session == '' then return false end
  local other = #found.answered > 0 and get(found.answered[#found.answered])
  if not other or other.id == plan.id or not plan.person then return false end
  local whole = other.delivered and other.outcome == 'completed' and other.done <= plan.now
  return whole and other.named == plan.session and plan.session == found.named
end

local threads = {sub_agent = true, declared_side = true, side_thread = true}
local function verdict(kind, label, reason, turn, previous, repeats, rejects)
  return {kind = kind, label = label, reason = reason, turn = turn, previous = previous,
    repeats = repeats or '', rejects = rejects or ''}
end

local function classify(choice, is_delegated)
  local found = choice.found
  if found and found.kind == 'compaction' then
    choice.level = 'bridge'
    local before = found.previous ~= '' and get(found.previous) or nil
    if not before and plan.kind == 'main' and not is_delegated then
      return verdict('main', 'main', 'summary_without_turn')
    end
    found = before
  end
  if plan.kind ~= 'main' then
    local lasting = threads[plan.reason] and 'side' or 'once'
    return verdict(plan.kind == 'side' and lasting or plan.kind, plan.kind, plan.reason, nil, found)
  end
  if is_delegated then return verdict('side', 'side', 'sub_agent', nil, found) end
  if found and found.kind == 'once' and plan.person then
    found = found.previous ~= '' and get(found.previous) or found
  end
  if found and (found.kind == 'side' or (found.kind == 'once' and not plan.person)) then
    return verdict(found.kind, 'side', 'side_thread', nil, found)
  end
  local label, repeats, rejects = again(same_before(), found)
  if label == 'main' and found and edited(found) then label, rejects = 'branch', found.answered[#found.answered] end
  if not found then return verdict('main', label, choice.reason, nil, nil, '', rejects) end
  if plan.now - found.done > limits.ttl_seconds or body(found.id) == '' then
    return verdict('main', label, 'expired', nil, found)
  end
  return verdict('main', label, 'matched', found, found, repeats, rejects)
end
