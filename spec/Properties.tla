----------------------------- MODULE Properties -----------------------------
(***************************************************************************)
(* Invariants.  Invariants of the simulator have the same names:           *)
(* OneVotePerTerm is sim/src/invariants/one_vote_per_term.rs, and so on.   *)
(* These are properties of the models alone: QuorumInForce, EnoughMembers. *)
(***************************************************************************)
EXTENDS TabletCopy

\* A server votes for at most one candidate in a term, also across restarts.
OneVotePerTerm == "two votes" \notin bad

OneLeaderPerTerm == "two leaders" \notin bad

\* Two logs with an entry of the same index and term are the same up to it.
LogMatching ==
    \A s, r \in Server : s # r =>
        \A n \in 1..Min(Len(log[s]), Len(log[r])) :
            log[s][n][1] = log[r][n][1] => SubSeq(log[s], 1, n) = SubSeq(log[r], 1, n)

\* A new leader has every entry committed in earlier terms.
LeaderCompleteness == "incomplete leader" \notin bad

\* No two different entries are ever committed at one index.
StateMachineSafety == "diverged" \notin bad

NoCommittedTruncation == "truncated" \notin bad

CommitWithinLog == \A s \in Server : commit[s] <= Len(log[s])

\* A replica applies committed entries only.
AppliedAgree ==
    \A s \in Server : \A n \in 1..Min(commit[s], Len(log[s])) :
        n <= Len(committed) /\ log[s][n] = committed[n][1]

\* Each committed entry is durable on at least one member of every majority of the newest committed configuration; a
\* tombstone counts by its OpId.  So no acknowledged write is lost while a majority lives.  (Half of an even
\* configuration may be enough: a leader counts by a smaller one as soon as it has appended it.)  A replica that does
\* not know the end of its log does not vote, so it may have lost the entry.
Knows(s, n) ==
    IF data[s] = "R" THEN n <= dur[s] /\ log[s][n] = committed[n][1]
    ELSE Geq(Known(s), <<committed[n][1][1], n>>)
NewestConfig == IF committed = <<>> THEN FirstConfig ELSE committed[Len(committed)][1][2]
QuorumKeeps ==
    \A n \in 1..Len(committed) : ~IsMajority({s \in Server : ~IsBlind(s) /\ ~Knows(s, n)}, Voters(NewestConfig))

\* The same for the configuration in force at the newest leader: after every promotion and eviction the up-to-date
\* members can commit.
NewestTerm == IF \E t \in Terms : Sender(t) # Nil
              THEN CHOOSE t \in Terms : Sender(t) # Nil /\ \A u \in Terms : Sender(u) # Nil => u <= t ELSE 0
QuorumInForce ==
    NewestTerm > 0 =>
        \A n \in 1..Min(Len(committed), told[NewestTerm]) :
            IsMajority({s \in Server : Knows(s, n)}, Voters(Config(sent[NewestTerm].log)))

\* Any two majorities that could elect a leader now have a voter in common, also of different configurations.
Electors(s) ==
    IF Runs(s) /\ s \in Voters(Config(log[s]))
    THEN {x \in Voters(Config(log[s])) : Answers(x) /\ ~IsBlind(x) /\ Geq(Last(log[s]), Known(x))} ELSE {}
Missing(need, own) == IF need > own THEN need - own ELSE 0
Apart(s, r) ==
    LET a == Electors(s)
        b == Electors(r)
        needA == Cardinality(Voters(Config(log[s]))) \div 2 + 1
        needB == Cardinality(Voters(Config(log[r]))) \div 2 + 1
    IN /\ Cardinality(a) >= needA /\ Cardinality(b) >= needB
       /\ Missing(needA, Cardinality(a \ b)) + Missing(needB, Cardinality(b \ a)) <= Cardinality(a \intersect b)
QuorumsMeet == \A s, r \in Server : s # r => ~Apart(s, r)

\* Only a voter leads; a leader whose removal is committed has stepped down.
OnlyVotersLead == \A s \in Server : IsLeader(s) => s \in Voters(ConfigAt(log[s], commit[s]))

\* The master's replacements keep the number of members between the replication factor and its maximum.
EnoughMembers ==
    \A t \in Terms : Sender(t) # Nil =>
        Cardinality(Members(Config(sent[t].log))) \in Replication..Replication + 1

\* Every term in use began with an election, and every election with a pre-vote by a majority.
TermsAreElected == \A s \in Server : Term(s) > 0 => \E x \in Server : cand[Term(s)][x] # NotAsked
PreVoteFirst == \A t \in Terms, s \in Server : PreVote /\ cand[t][s] # NotAsked => cand[t][s].fair

\* A tombstone, and a copy that failed, keep term, vote and OpId.
NoAmnesia == "amnesia" \notin bad

\* A replica that does not know the end of its log never votes.
NoBlindVote == "blind vote" \notin bad

\* A tombstone is never replaced by a copy of an older state.
NoRevival == "revived" \notin bad

\* A replica that becomes READY holds a prefix of a leader's log, with every committed entry that it acknowledged.
CopyIsPrefix == bad \intersect {"not a prefix", "forgot"} = {}

\* The log of a running replica has every committed entry that it acknowledged.
AcknowledgedStays == \A s \in Server : Runs(s) => ~Owes(s, log[s])

\* An old delete request has no effect on a replica that knows that it was revoked.
NoStaleDelete == "stale delete" \notin bad
=============================================================================
