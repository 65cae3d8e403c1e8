------------------------------- MODULE Seeds -------------------------------
(***************************************************************************)
(* Models that begin after a script.  Some bugs need a dozen steps before  *)
(* the one that goes wrong, too many for a search from the start. A script *)
(* of ordinary actions leads there, so everything after it is reachable by *)
(* construction, and the search continues from its end.                    *)
(***************************************************************************)
EXTENDS Nyala

CONSTANTS a, b, c, d    \* servers of the scripts; d may be Nil
VARIABLE at             \* the next step of the script

Elected(i, t, voters) ==
    <<<<"elect", i>>>> \o [k \in 1..Len(voters) |-> <<"vote", voters[k], t, i>>] \o <<<<"lead", i>>, <<"write", i>>>>

\* c was elected in term 1 and wrote its no-op to its own log only; a was elected in term 2 by b, the same.  This is
\* figure 8 of the Raft paper at (b).
Figure8 == Elected(c, 1, <<a>>) \o Elected(a, 2, <<b>>)

\* Figure 8 at (c): c is back, was elected in term 3 by b, and resumes sending its entry of term 1.
Figure8c == Figure8 \o <<<<"see", c, 2>>, <<"elect", c>>, <<"vote", b, 3, c>>, <<"lead", c>>>>

\* c is paused and still believes that it leads; a's no-op is committed on a and b.  The paper's split brain
\* begins here.
Stale == Figure8 \o <<<<"receive", b, 2, 1>>, <<"commit", a>>>>

\* a leads term 1 with all votes; its no-op is in its own log only.
Lead == Elected(a, 1, <<b, c, d>>)

Step(e) ==
    CASE e[1] = "elect"   -> StartElection(e[2], TRUE)
      [] e[1] = "see"     -> SeeTerm(e[2], e[3])
      [] e[1] = "vote"    -> GrantVote(e[2], e[3], e[4])
      [] e[1] = "lead"    -> BecomeLeader(e[2])
      [] e[1] = "write"   -> ClientAppend(e[2], 0)
      [] e[1] = "receive" -> Receive(e[2], e[3], Agree(log[e[2]], sent[e[3]].log), e[4], told[e[3]])
      [] e[1] = "commit"  -> CommitMost(e[2])

Follow(script, next) ==
    IF at <= Len(script) THEN Step(script[at]) /\ at' = at + 1 ELSE next /\ at' = at

SeedInit == Init /\ at = 1
SpecFigure8 == SeedInit /\ [][Follow(Figure8c, NextRaft)]_<<vars, at>>
SpecStale == SeedInit /\ [][Follow(Stale, NextCopy)]_<<vars, at>>
SpecStaleFails == SeedInit /\ [][Follow(Stale, NextFails)]_<<vars, at>>
SpecLead == SeedInit /\ [][Follow(Lead, NextFree)]_<<vars, at>>

\* The servers of a script are no longer alike; the others are.
SeedSymmetric == {p \in Symmetric : p[a] = a /\ p[b] = b /\ p[c] = c /\ (d \in Server => p[d] = d)}
=============================================================================
