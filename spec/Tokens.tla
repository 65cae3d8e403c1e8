------------------------------- MODULE Tokens -------------------------------
(***************************************************************************)
(* Tokens and the keys that sign them: rotation, failover, clocks that     *)
(* differ by at most Err.                                                   *)
(*                                                                         *)
(* Time is the verifier's. Master m reads now + skew[m]. A leader creates  *)
(* a key by its own clock, stores it, and uses what is stored. The         *)
(* verifier learns stored keys at any time. A token says when it expires,  *)
(* by the clock of the leader that signed it.                              *)
(*                                                                         *)
(* Code: Create, Remove and Sign are nyala-common's TokenSigner, Store is  *)
(* engine's catalog::Catalog::change_secrets, Learn is                     *)
(* TokenVerifier::import, Verdict is TokenVerifier::verify.                *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    Masters,
    MaxTime,    \* the time stops here, so that the model is finite
    MaxKey,     \* the largest number of a key
    Rotation,   \* interval between keys
    Validity,   \* of a token
    Err,        \* largest error of a clock
    Nil,
    Mut         \* guards that are switched off; {} is the system as built

VARIABLES
    now,        \* true time
    skew,       \* error of each master's clock; the verifier's clock is the time
    leader,
    made,       \* the key that the leader has made and not stored, or Nil
    stored,     \* keys in the system tablet
    known,      \* keys of the verifier
    tokens      \* signed tokens: key, expiry by the leader's clock, time of issue

vars == <<now, skew, leader, made, stored, known, tokens>>

Off(guard) == guard \in Mut

Clock(s) == now + skew[s]
Numbers(keys) == {k.n : k \in keys}
Newest(keys) == CHOOSE k \in keys : \A j \in keys : j.n <= k.n
Oldest(keys) == CHOOSE k \in keys : \A j \in keys : k.n <= j.n

Init ==
    /\ now = 0
    /\ skew \in [Masters -> -Err..Err]
    /\ leader \in Masters
    /\ made = Nil
    /\ stored = {}
    /\ known = {}
    /\ tokens = {}

Tick ==
    /\ now < MaxTime
    /\ now' = now + 1
    /\ UNCHANGED <<skew, leader, made, stored, known, tokens>>

\* Another leader: a key that was made and not stored is lost.
Failover(m) ==
    /\ m # leader
    /\ leader' = m
    /\ made' = Nil
    /\ UNCHANGED <<now, skew, stored, known, tokens>>

\* Keys that outlive every token they could sign now.
Usable(keys) == {k \in keys : Off("outlive") \/ k.exp >= Clock(leader) + Validity}
Active(keys) == {k \in Usable(keys) : k.at + Rotation <= Clock(leader)}

Due ==
    IF stored = {} THEN TRUE
    ELSE Newest(stored).at + Rotation <= Clock(leader) \/ Usable(stored) = {}

Next0(keys) == IF keys = {} THEN 0 ELSE Newest(keys).n + 1

Create ==
    /\ made = Nil
    /\ Due
    /\ Next0(stored) <= MaxKey
    /\ made' = [n |-> Next0(stored), at |-> Clock(leader), by |-> leader,
                exp |-> Clock(leader) + 2 * Rotation + Validity]
    /\ UNCHANGED <<now, skew, leader, stored, known, tokens>>

Store ==
    /\ made # Nil
    /\ stored' = stored \union {made}
    /\ made' = Nil
    /\ UNCHANGED <<now, skew, leader, known, tokens>>

\* Expired keys are removed; the newest stays, because its number tells the next one.
Remove(k) ==
    /\ k \in stored
    /\ k.exp < Clock(leader)
    /\ Off("newest") \/ k # Newest(stored)
    /\ stored' = stored \ {k}
    /\ UNCHANGED <<now, skew, leader, made, known, tokens>>

Learn ==
    LET seen == IF Off("persist") /\ made # Nil THEN stored \union {made} ELSE stored
        new == {k \in seen : k.n \notin Numbers(known)}
    IN /\ new # {}
       /\ known' = known \union new
       /\ UNCHANGED <<now, skew, leader, made, stored, tokens>>

\* The newest active key signs; if none is active, the oldest.
Sign ==
    LET keys == IF Off("persist") /\ made # Nil THEN stored \union {made} ELSE stored
        key == IF Active(keys) # {} THEN Newest(Active(keys)) ELSE Oldest(Usable(keys))
    IN /\ Usable(keys) # {}
       /\ Cardinality(tokens) < 1
       /\ tokens' = tokens \union {[key |-> key, exp |-> Clock(leader) + Validity, issued |-> now]}
       /\ UNCHANGED <<now, skew, leader, made, stored, known>>

Verdict(t) ==
    LET at == now
        same == {k \in known : k.n = t.key.n}
    IN IF ~Off("expiry") /\ t.exp < at THEN "expired"
       ELSE IF same = {} THEN "unknown"
       ELSE LET k == CHOOSE x \in same : TRUE
            IN IF k.exp < at THEN "keyexpired" ELSE IF k # t.key THEN "forged" ELSE "accepted"

Next ==
    \/ Tick
    \/ \E m \in Masters : Failover(m)
    \/ Create \/ Store \/ Learn \/ Sign
    \/ \E k \in stored : Remove(k)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

\* No token is accepted after its validity and the error of a clock.
AcceptedInTime ==
    \A t \in tokens : Verdict(t) = "accepted" => now <= t.issued + Validity + Err

\* No valid token is refused. A server without the key says so, and the client retries.
ValidNotRefused ==
    \A t \in tokens : now + Err <= t.issued + Validity => Verdict(t) \in {"accepted", "unknown"}

\* One number means one key.
NumbersUnique ==
    \A k, j \in stored \union known : k.n = j.n => k = j
=============================================================================
