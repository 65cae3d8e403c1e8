--------------------------- MODULE FollowerReads ---------------------------
(***************************************************************************)
(* Safe time beyond the leader: the condition under which a follower may   *)
(* serve a snapshot.                                                       *)
(*                                                                         *)
(* Servers have clocks that are wrong by at most Error.  A leader proposes *)
(* a time T that is certainly past.  Once a majority has replied after the *)
(* proposal, no other server was elected before it, so T is safe: this     *)
(* leader's later operations are above T, and a later leader first moves   *)
(* its clock past every time that its own clock can mean.  There is no     *)
(* lease, and no bound other than the clocks' stated error.                *)
(*                                                                         *)
(* Code: engine/src/raft/safe_time.rs.  Pick is the safe-time proposal,    *)
(* Confirm happens when replies arrive, the first move of Elected is the   *)
(* start of the leadership, Serve is the Scan call.                        *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS Server, Error, MaxTime, MaxTerm, Mut

VARIABLES
    now,        \* true time, which no server knows
    ahead,      \* by how much each clock is ahead of it, plus Error: 0 .. 2 * Error
    seen,       \* the newest term each server knows
    term,       \* the term a server leads, 0 if it never did
    clock,      \* the last timestamp that each server's hybrid clock issued or was moved past
    pick,       \* a leader's safe-time proposal, 0 if it has none
    heard,      \* servers that replied to the leader since the proposal
    safe,       \* the safe time: no operation at or below it will be added
    committed,  \* timestamps of committed operations
    answers     \* responses to clients

vars == <<now, ahead, seen, term, clock, pick, heard, safe, committed, answers>>

On(guard) == guard \notin Mut
Max(a, b) == IF a >= b THEN a ELSE b
Biggest(S) == IF S = {} THEN 0 ELSE CHOOSE t \in S : \A u \in S : u <= t
\* A clock's reading, with Error added so that it is a natural number.  True time is within reading - 2 * Error and
\* reading.
Reading(s) == now + ahead[s]
Majority(Q) == 2 * Cardinality(Q) > Cardinality(Server)

Init ==
    /\ now = 1
    /\ ahead \in [Server -> {0, 2 * Error}]
    /\ seen = [s \in Server |-> 0]
    /\ term = [s \in Server |-> 0]
    /\ clock = [s \in Server |-> 0]
    /\ pick = [s \in Server |-> 0]
    /\ heard = [s \in Server |-> {}]
    /\ safe = 0
    /\ committed = {}
    /\ answers = {}

Tick == now < MaxTime /\ now' = now + 1 /\ UNCHANGED <<ahead, seen, term, clock, pick, heard, safe, committed, answers>>

\* A leader of a new term; its log has all committed entries, and its clock moves past every time that it can mean now.
Elected(s) ==
    /\ seen[s] < MaxTerm
    /\ \E Q \in SUBSET Server :
       /\ Majority(Q) /\ s \in Q /\ \A x \in Q : seen[x] <= seen[s]
       /\ seen' = [x \in Server |-> IF x \in Q THEN seen[s] + 1 ELSE seen[x]]
    /\ term' = [term EXCEPT ![s] = seen[s] + 1]
    /\ clock' = [clock EXCEPT ![s] =
           Max(Max(@, Biggest(committed)), IF On("pass") THEN Reading(s) ELSE 0)]
    /\ pick' = [pick EXCEPT ![s] = 0]
    /\ heard' = [heard EXCEPT ![s] = {}]
    /\ UNCHANGED <<now, ahead, safe, committed, answers>>

\* An operation gets the next timestamp, and a majority that still follows this leader commits it.  A clock shows the
\* middle of the times that it can mean.
Write(s) ==
    LET t == Max(clock[s] + 1, IF Reading(s) > Error THEN Reading(s) - Error ELSE 0) IN
    /\ term[s] > 0 /\ Majority({x \in Server : seen[x] = term[s]})
    /\ t <= MaxTime + 2 * Error
    /\ committed' = committed \union {t}
    /\ clock' = [clock EXCEPT ![s] = t]
    /\ UNCHANGED <<now, ahead, seen, term, pick, heard, safe, answers>>

\* A proposal of a time that is certainly past; the leader's later operations are above it.
Pick(s) ==
    LET margin == IF On("past") THEN 2 * Error ELSE 0
        t == IF Reading(s) > margin THEN Reading(s) - margin ELSE 0
    IN
    /\ term[s] > 0 /\ t > pick[s]
    /\ pick' = [pick EXCEPT ![s] = t]
    /\ heard' = [heard EXCEPT ![s] = {s} \intersect {x \in Server : seen[x] = term[s]}]
    /\ clock' = [clock EXCEPT ![s] = Max(@, t)]
    /\ UNCHANGED <<now, ahead, seen, term, safe, committed, answers>>

Answer(s, x) ==
    /\ pick[s] > 0 /\ seen[x] = term[s] /\ x \notin heard[s]
    /\ heard' = [heard EXCEPT ![s] = @ \union {x}]
    /\ UNCHANGED <<now, ahead, seen, term, clock, pick, safe, committed, answers>>

Confirm(s) ==
    /\ pick[s] > safe
    /\ On("confirm") => Majority(heard[s])
    /\ safe' = pick[s]
    /\ UNCHANGED <<now, ahead, seen, term, clock, pick, heard, committed, answers>>

\* A follower that has every operation up to the safe time serves a snapshot at it.
Serve ==
    /\ safe > 0
    /\ answers' = answers \union {[at |-> safe, shown |-> {t \in committed : t <= safe}]}
    /\ UNCHANGED <<now, ahead, seen, term, clock, pick, heard, safe, committed>>

Next ==
    \/ Tick
    \/ Serve
    \/ \E s \in Server : Elected(s) \/ Write(s) \/ Pick(s) \/ Confirm(s) \/ \E x \in Server : Answer(s, x)

Spec == Init /\ [][Next]_vars

Symmetric == Permutations(Server)

-----------------------------------------------------------------------------
RepeatableSnapshot == \A a \in answers : a.shown = {t \in committed : t <= a.at}

\* Safe time never regresses: no operation is added at or below it.
SafeTimeMonotone == [][safe' >= safe /\ \A t \in committed' \ committed : t > safe]_vars
=============================================================================
