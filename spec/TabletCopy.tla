----------------------------- MODULE TabletCopy -----------------------------
(***************************************************************************)
(* Tablet copy, tombstones, and the master's delete.                       *)
(*                                                                         *)
(* A deleted replica leaves a permanent tombstone: term, vote and the OpId *)
(* of its last entry.  A server that forgets them can be made to vote      *)
(* twice, or be copied over by a leader that was deposed long ago; two     *)
(* such replicas and the old leader are a majority of an old configuration *)
(* beside the majority of the new one.                                     *)
(***************************************************************************)
EXTENDS RaftReconfig

\* Source: a session fixes the fetchable state, n entries of the log.
\* Code: Replica::copy_view and CopySource::new, engine/src/replica/copy/source.rs.
CopyOpen(i, s, n) ==
    /\ Runs(i) /\ s # i /\ n <= Len(log[i])
    /\ On("syncedtail") => n <= dur[i]
    /\ open' = [open EXCEPT ![s] = Offer(i, n)]
    /\ UNCHANGED <<replica, data, tomb, down, copy, network, history>>

\* History: the source does not know a committed entry that the tombstone knew.
Older(s, i) ==
    \E n \in 1..Len(committed) :
        /\ Geq(Known(s), <<committed[n][1][1], n>>)
        /\ ~(n <= Len(log[i]) /\ log[i][n] = committed[n][1])

\* Sink: accepts the offer o, which the leader of term t requested.  The superblock says COPYING and still holds the
\* tombstone's OpId; the metadata is merged: the higher term wins, the vote survives unless the term grew.  A failed
\* replica may be replaced as a tombstone may.  A replica that does not know the end of its log is compared by its
\* term: a leader of that term or a later one has everything that it ever acknowledged.
\* Code: LocalReplica::admit_term and check_source_state, copy/mod.rs; CopySink::begin, copy/sink.rs;
\* ConsensusMeta::merge, raft/consensus_meta.rs.
CopyStart(s, o, t) ==
    /\ copies < MaxCopies
    /\ o # Nil /\ o.log # <<>>
    /\ data[s] \in {"N", "T"} \/ down[s] # "up" \/ (~On("readycopy") /\ data[s] = "R" /\ role[s] = "F")
    /\ LET least == IF IsBlind(s) THEN Term(s) ELSE Position(s)[1] IN
       On(IF IsBlind(s) THEN "blindterm" ELSE "tombterm") => t >= least /\ o.term >= least
    /\ On("tombindex") => Geq(Last(o.log), Known(s))
    /\ data' = [data EXCEPT ![s] = "Y"]
    /\ tomb' = [tomb EXCEPT ![s] = Position(s)]
    /\ down' = [down EXCEPT ![s] = "up"]
    /\ copy' = [copy EXCEPT ![s] = o]
    /\ open' = [open EXCEPT ![s] = Nil]
    /\ meta' = [meta EXCEPT ![s] =
           IF ~On("merge") THEN <<<<o.term, Nil>>>>
           ELSE IF o.term > Term(s) THEN <<<<o.term, Nil>>>> ELSE <<Newest(@)>>]
    /\ vote' = Released(s, meta[s], Len(meta[s]))
    /\ log' = [log EXCEPT ![s] = <<>>]
    /\ dur' = [dur EXCEPT ![s] = 0]
    /\ ghosts' = [ghosts EXCEPT ![s] = {}]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ copies' = copies + 1
    /\ bad' = bad \union Flag("revived", Older(s, o.source))
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ UNCHANGED <<pre, cand, sent, told, ack, committed>>

\* TRUE if a log holds entries that leaders sent, and no others.
IsSent(lg) == lg = <<>> \/ LET t == lg[Len(lg)][1] IN Len(lg) <= Len(sent[t].log) /\ sent[t].log[Len(lg)] = lg[Len(lg)]

\* Committed entries that s acknowledged in any term and that its configuration counts.
Owes(s, lg) ==
    \E n \in 1..Len(committed) :
        /\ s \in Voters(committed[Len(committed)][1][2])
        /\ \E t \in Terms : ack[t][s] >= n /\ sent[t].log[n] = committed[n][1]
        /\ ~(n <= Len(lg) /\ lg[n] = committed[n][1])

\* Data, WAL and metadata are durable; READY is written last.
\* Code: CopySink::finish, copy/sink.rs.
CopyFinish(s) ==
    LET lg == copy[s].log IN
    /\ data[s] = "Y" /\ down[s] = "up"
    /\ data' = [data EXCEPT ![s] = "R"]
    /\ tomb' = [tomb EXCEPT ![s] = <<0, 0>>]
    /\ log' = [log EXCEPT ![s] = lg]
    /\ dur' = [dur EXCEPT ![s] = IF On("readylast") THEN Len(lg) ELSE 0]
    /\ commit' = [commit EXCEPT ![s] = copy[s].commit]
    /\ copy' = [copy EXCEPT ![s] = Nil]
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ bad' = bad \union Flag("not a prefix", ~IsSent(lg)) \union Flag("forgot", Owes(s, SubSeq(lg, 1, dur'[s])))
    /\ UNCHANGED <<meta, ghosts, down, open, network, committed, copies>>

\* The copy fails while the server lives on: back to the tombstone.
\* Code: CopySink::abort, copy/sink.rs.
CopyAbort(s) ==
    /\ data[s] = "Y" /\ down[s] = "up"
    /\ data' = [data EXCEPT ![s] = "T"]
    /\ tomb' = IF On("keeptomb") THEN tomb ELSE [tomb EXCEPT ![s] = <<0, 0>>]
    /\ copy' = [copy EXCEPT ![s] = Nil]
    /\ bad' = bad \union Flag("amnesia", tomb'[s] # tomb[s])
    /\ UNCHANGED <<replica, down, open, network, committed, copies>>

\* State that a deleted replica retains.
LeaveTombstone(s) ==
    /\ data' = [data EXCEPT ![s] = IF On("tombstone") THEN "T" ELSE "N"]
    /\ tomb' = [tomb EXCEPT ![s] = IF On("tombstone") /\ On("tombopid") THEN Position(s) ELSE <<0, 0>>]
    /\ down' = [down EXCEPT ![s] = "up"]
    /\ meta' = [meta EXCEPT ![s] = IF On("tombstone") THEN <<Newest(@)>> ELSE <<<<0, Nil>>>>]
    /\ vote' = Released(s, meta[s], Len(meta[s]))
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ log' = [log EXCEPT ![s] = <<>>]
    /\ dur' = [dur EXCEPT ![s] = 0]
    /\ ghosts' = [ghosts EXCEPT ![s] = {}]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ copy' = [copy EXCEPT ![s] = Nil]

\* The master's request: delete the replica if its committed configuration is not newer than index n (Nil: no
\* condition).  The configuration of an unopened replica is unknown.
\* Code: node/src/hosting/tombstones.rs; replica::tombstone::tombstone.
Tombstone(s, n) ==
    LET mine == Index(ConfigAt(log[s], commit[s]))
        newer == {k \in 1..commit[s] : Index(log[s][k][2]) = k /\ k > n /\ s \in Members(log[s][k][2])}
    IN
    /\ data[s] = "R" \/ (Exists(s) /\ down[s] # "up")
    /\ (On("deletecas") /\ n # Nil /\ ~IsBlind(s)) => mine <= n
    /\ LeaveTombstone(s)
    /\ bad' = bad \union Flag("stale delete", n # Nil /\ ~IsBlind(s) /\ newer # {})
                  \union Flag("amnesia", tomb'[s] # Position(s) \/ Newest(meta'[s]) # Newest(meta[s]))
    /\ UNCHANGED <<open, pre, cand, sent, told, ack, committed, copies>>

\* The table is dropped: the replica forgets everything and never comes back ("D").
\* Code: node/src/hosting/tombstones.rs; replica::tombstone::delete.
Delete(s) ==
    /\ data[s] \in {"R", "T", "Y"}
    /\ data' = [data EXCEPT ![s] = "D"]
    /\ tomb' = [tomb EXCEPT ![s] = <<0, 0>>]
    /\ down' = [down EXCEPT ![s] = "up"]
    /\ copy' = [copy EXCEPT ![s] = Nil]
    /\ meta' = [meta EXCEPT ![s] = <<<<0, Nil>>>>]
    /\ role' = [role EXCEPT ![s] = "F"]
    /\ log' = [log EXCEPT ![s] = <<>>]
    /\ dur' = [dur EXCEPT ![s] = 0]
    /\ ghosts' = [ghosts EXCEPT ![s] = {}]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ UNCHANGED <<open, network, history>>

-----------------------------------------------------------------------------
(* Sources of requests in the models.                                       *)

\* The leader i of term t finds a member without a replica and tells it to copy; the request may be late, and i may have
\* another role by now.
LeaderCopies(t) ==
    LET i == Sender(t) IN
    /\ i # Nil /\ Runs(i)
    /\ \E s \in Members(Config(sent[t].log)) \ {i} : CopyStart(s, Offer(i, dur[i]), t)

\* The master deletes a replica outside the last committed configuration that it knows, the n-th entry's.
MasterDeletes(s) ==
    \E n \in 1..Len(committed) :
        /\ Index(committed[n][1][2]) = n
        /\ s \notin Members(committed[n][1][2])
        /\ Tombstone(s, n)
=============================================================================
