------------------------------ MODULE SafeTime ------------------------------
(***************************************************************************)
(* The condition under which a tablet may serve a scan at timestamp T.     *)
(*                                                                         *)
(* A snapshot at T shows exactly the operations with timestamps below T.   *)
(* The response must never change, so two conditions hold when it is       *)
(* given: no operation below T is in flight, and none will ever begin.     *)
(* The tablet establishes the first by waiting, and the second by moving   *)
(* the server's hybrid clock past T before it reads (paper 4.2).           *)
(*                                                                         *)
(* Code: Begin is engine's tablet::mvcc::Mvcc::begin, Apply is             *)
(* Mvcc::applied, Observe is the update of node's server clock in the Scan *)
(* call, Serve is Mvcc::all_applied_before.                                *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Writers,    \* operations that may begin concurrently
    MaxTime,    \* the clock stops here, so that the model is finite
    Mut         \* guards that are switched off; {} is the system as built

VARIABLES
    clock,      \* the last timestamp that the server's hybrid clock issued or observed
    taken,      \* per writer: a timestamp it holds but has not registered (0: none)
    inFlight,   \* timestamps of operations registered and not yet applied
    applied,    \* timestamps of operations that scans can see
    observed,   \* snapshot timestamps the clock was moved past
    answers     \* responses to clients: the snapshot and its content

vars == <<clock, taken, inFlight, applied, observed, answers>>

Off(guard) == guard \in Mut

Init ==
    /\ clock = 0
    /\ taken = [w \in Writers |-> 0]
    /\ inFlight = {}
    /\ applied = {}
    /\ observed = {}
    /\ answers = {}

\* Time passes without another event.
Tick ==
    /\ clock < MaxTime
    /\ clock' = clock + 1
    /\ UNCHANGED <<taken, inFlight, applied, observed, answers>>

\* A write gets its timestamp and is registered as in flight, in one step under one lock.
Begin ==
    /\ ~Off("register")
    /\ clock < MaxTime
    /\ clock' = clock + 1
    /\ inFlight' = inFlight \union {clock + 1}
    /\ UNCHANGED <<taken, applied, observed, answers>>

\* The same without the lock: the timestamp is taken first ...
Take(w) ==
    /\ Off("register")
    /\ clock < MaxTime
    /\ taken[w] = 0
    /\ clock' = clock + 1
    /\ taken' = [taken EXCEPT ![w] = clock + 1]
    /\ UNCHANGED <<inFlight, applied, observed, answers>>

\* ... and registered later.
Register(w) ==
    /\ taken[w] # 0
    /\ inFlight' = inFlight \union {taken[w]}
    /\ taken' = [taken EXCEPT ![w] = 0]
    /\ UNCHANGED <<clock, applied, observed, answers>>

\* Operations are applied in the order of their timestamps.
Apply ==
    /\ inFlight # {}
    /\ Off("drain") => Cardinality(inFlight) > 1
    /\ LET first == CHOOSE t \in inFlight : \A u \in inFlight : t <= u
           next == IF Off("order") THEN inFlight ELSE {first}
       IN \E t \in next :
              /\ applied' = applied \union {t}
              /\ inFlight' = inFlight \ {t}
    /\ UNCHANGED <<clock, taken, observed, answers>>

\* A scan at T begins: the clock moves past T.
Observe(T) ==
    /\ T \notin observed
    /\ observed' = observed \union {T}
    /\ clock' = IF Off("observe") THEN clock ELSE IF clock < T THEN T ELSE clock
    /\ UNCHANGED <<taken, inFlight, applied, answers>>

\* The scan is served once everything below T has been applied.
Serve(T) ==
    /\ T \in observed
    /\ Off("wait") \/ \A t \in inFlight : t >= T
    /\ answers' = answers \union {[at |-> T, shown |-> {t \in applied : t < T}]}
    /\ UNCHANGED <<clock, taken, inFlight, applied, observed>>

Next ==
    \/ Tick
    \/ Begin
    \/ \E w \in Writers : Take(w) \/ Register(w)
    \/ Apply
    \/ \E T \in 1..MaxTime : Observe(T) \/ Serve(T)

Spec == Init /\ [][Next]_vars /\ WF_vars(Apply)

-----------------------------------------------------------------------------

TypeOK ==
    /\ clock \in 0..MaxTime
    /\ taken \in [Writers -> 0..MaxTime]
    /\ inFlight \subseteq 1..MaxTime
    /\ applied \subseteq 1..MaxTime

\* The content of a snapshot never changes.
RepeatableSnapshot ==
    \A a \in answers : a.shown = {t \in applied : t < a.at}

\* No operation is applied before one with an earlier timestamp.
AppliedInOrder ==
    \A t \in inFlight, u \in applied : u < t

\* Every operation that began is eventually applied, so that waiting scans are served.
EverythingApplied == \A t \in 1..MaxTime : t \in inFlight ~> t \in applied
=============================================================================
