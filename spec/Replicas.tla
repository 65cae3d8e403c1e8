------------------------------ MODULE Replicas ------------------------------
(***************************************************************************)
(* The replicas of one tablet: state of each replica, messages sent, and   *)
(* the history that properties need.  Raft, RaftReconfig and TabletCopy    *)
(* add the actions, Nyala combines them.                                   *)
(*                                                                         *)
(* There is no bag of messages.  Whatever a leader of term t may have sent *)
(* is a prefix of sent[t].log; requests of candidates are in cand, replies *)
(* of voters in vote, acknowledgements of followers in ack.  All four only *)
(* grow, so loss, delay, duplication and reordering of messages are        *)
(* covered: an old message is an old prefix, and it may arrive at any      *)
(* later time.                                                             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Server,         \* the servers that may hold a replica
    InitVoters,     \* the first configuration
    InitLearners,
    Nil,
    MaxTerm,        \* bounds that make the model finite ...
    MaxLen,         \* ... entries of a log
    MaxCfg,         \* ... changes of configuration
    MaxCopies,      \* ... tablet copies
    Eager,          \* TRUE: writes are durable at once, as if each waited for its sync
    PreVote,        \* TRUE: elections begin with a pre-vote (FALSE: a server may try at any time)
    Lag,            \* entries that a learner may be behind the commit index and still be promoted
    Mut             \* guards that are switched off; {} is the system as built

VARIABLES
    meta,           \* terms and votes <<term, vote>>: the first is what the disk holds, the last what memory holds
    role,           \* "F" follower or learner, "C" candidate, "L" leader
    log,            \* entries, in memory
    dur,            \* number of them that survive every crash
    ghosts,         \* older logs that a crash may bring back: truncated in memory, not yet on the disk
    commit,         \* number of them that are known to be committed
    data,           \* the superblock's data state: "N" nothing, "R" ready, "Y" copying, "T" tombstone, "D" dropped
    tomb,           \* the last OpId a tombstone remembers; Nil: it can not be read
    down,           \* "up", or the reason for taking no part: "failed" in use, or "unopened", so its log is unknown
    copy,           \* state that a running copy will install
    open,           \* state that a source offered to a sink
    pre,            \* pre-votes: requests and grants
    cand,           \* elections: requests
    vote,           \* votes that left their server
    sent,           \* the log of each term's leader
    told,           \* the commit index it sent to others
    ack,            \* number of its entries that each follower has durably acknowledged
    committed,      \* history: every committed entry with the term in which it was committed
    copies,         \* history: number of copies begun
    bad             \* history: violations

replica == <<meta, role, log, dur, ghosts, commit>>
tablet  == <<data, tomb, down, copy, open>>
network == <<pre, cand, vote, sent, told, ack>>
history == <<committed, copies, bad>>
vars    == <<replica, tablet, network, history>>

On(guard) == guard \notin Mut
Terms == 1..MaxTerm
Max(a, b) == IF a >= b THEN a ELSE b
Min(a, b) == IF a <= b THEN a ELSE b
Flag(name, when) == IF when THEN {name} ELSE {}

-----------------------------------------------------------------------------
(* Logs.  An entry is <<term, configuration, time>>: the term that created  *)
(* it, the configuration in force from it on, which is <<index, voters,     *)
(* learners>> with the index of the entry that brought it, and a timestamp, *)
(* which only traces know (SafeTime is about timestamps).  The place of an  *)
(* entry is its index.  The content of a write does not matter.             *)

FirstConfig == <<0, InitVoters, InitLearners>>
ConfigAt(lg, n) == IF n = 0 THEN FirstConfig ELSE lg[n][2]
Config(lg) == ConfigAt(lg, Len(lg))
Index(c) == c[1]
Voters(c) == c[2]
Learners(c) == c[3]
Members(c) == c[2] \union c[3]
Write(t, lg, time) == <<t, Config(lg), time>>
Change(t, lg, voters, learners) == <<t, <<Len(lg) + 1, voters, learners>>, 0>>

OpIdAt(lg, n) == IF n = 0 THEN <<0, 0>> ELSE <<lg[n][1], n>>
Last(lg) == OpIdAt(lg, Len(lg))
Geq(a, b) == a[1] > b[1] \/ (a[1] = b[1] /\ a[2] >= b[2])

\* Length of the common prefix of two logs.  Logs with the same entry somewhere agree before it too (LogMatching), on
\* which the check of the preceding OpId depends, so the search may begin at the end.
RECURSIVE AgreeUpTo(_, _, _)
AgreeUpTo(a, b, n) == IF n = 0 THEN 0 ELSE IF a[n] = b[n] THEN n ELSE AgreeUpTo(a, b, n - 1)
Agree(a, b) == AgreeUpTo(a, b, Min(Len(a), Len(b)))

IsMajority(Q, voters) == 2 * Cardinality(Q \cap voters) > Cardinality(voters)

-----------------------------------------------------------------------------
(* State of a replica.                                                      *)

Newest(m) == m[Len(m)]
Term(s) == Newest(meta[s])[1]
Voted(s) == Newest(meta[s])[2]
DurableTerm(s) == meta[s][1][1]
\* New metadata: durable at once, or queued behind the running write.
Metadata(s, m) ==
    IF Eager THEN [meta EXCEPT ![s] = <<m>>]
    ELSE IF m = Newest(meta[s]) THEN meta ELSE [meta EXCEPT ![s] = Append(@, m)]
\* OpId that decides about a replica's votes and copies; Nil if it is unknown.
Position(s) == IF down[s] = "unopened" THEN Nil ELSE IF data[s] = "R" THEN Last(log[s]) ELSE tomb[s]
IsBlind(s) == Position(s) = Nil
Known(s) == IF IsBlind(s) THEN <<0, 0>> ELSE Position(s)
Exists(s) == data[s] \notin {"N", "D"}
Answers(s) == Exists(s) /\ down[s] = "up"
Runs(s) == data[s] = "R" /\ down[s] = "up"
Sender(t) == sent[t].leader
IsLeader(s) == Runs(s) /\ role[s] = "L"

\* Votes that leave when the metadata up to its k-th version is durable: each at most once in its term.
Released(s, m, k) ==
    [t \in Terms |-> [vote[t] EXCEPT ![s] =
        IF \E j \in 1..k : m[j][1] = t /\ m[j][2] # Nil
        THEN m[CHOOSE j \in 1..k : m[j][1] = t /\ m[j][2] # Nil][2] ELSE @]]
VotedTwice(s, votes) == \E t \in Terms : vote[t][s] # Nil /\ votes[t][s] # vote[t][s]

\* Entries that s, with d durable entries of this log, acknowledges to the leader of its term, if that term is durable.
Acknowledged(s, m, lg, d) ==
    LET t == Newest(m)[1] IN
    IF t = 0 THEN ack
    ELSE IF Sender(t) \in {Nil, s} \/ m[1][1] # t THEN ack
    ELSE [ack EXCEPT ![t][s] = Max(@, Min(d, Agree(lg, sent[t].log)))]

-----------------------------------------------------------------------------
NotSent == [leader |-> Nil, log |-> <<>>]
NotAsked == <<>>
Offer(i, n) == [source |-> i, log |-> SubSeq(log[i], 1, n), commit |-> Min(commit[i], n), term |-> Term(i)]
First == InitVoters \union InitLearners

Init ==
    /\ meta = [s \in Server |-> <<<<0, Nil>>>>]
    /\ role = [s \in Server |-> "F"]
    /\ log = [s \in Server |-> <<>>]
    /\ dur = [s \in Server |-> 0]
    /\ ghosts = [s \in Server |-> {}]
    /\ commit = [s \in Server |-> 0]
    /\ data = [s \in Server |-> IF s \in First THEN "R" ELSE "N"]
    /\ tomb = [s \in Server |-> <<0, 0>>]
    /\ down = [s \in Server |-> "up"]
    /\ copy = [s \in Server |-> Nil]
    /\ open = [s \in Server |-> Nil]
    /\ pre = [t \in Terms |-> [s \in Server |-> NotAsked]]
    /\ cand = [t \in Terms |-> [s \in Server |-> NotAsked]]
    /\ vote = [t \in Terms |-> [s \in Server |-> Nil]]
    /\ sent = [t \in Terms |-> NotSent]
    /\ told = [t \in Terms |-> 0]
    /\ ack = [t \in Terms |-> [s \in Server |-> 0]]
    /\ committed = <<>>
    /\ copies = 0
    /\ bad = {}
=============================================================================
