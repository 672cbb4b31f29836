//! What the section about the shipped transport says beside its tables.

pub const HEAD: &str = "
## The shipped transport

Written by `cargo xtask congestion --shipped DATA`, which leaves the rest of this page alone. Experiments without a table here have not been run whole.

The same experiments (networks, flows, DCQCN parameters, switches), with hosts that run what `rocexdp run` runs
(`rocexdp-fabric/src/shipped.rs`). So that a difference can be laid to its cause, hosts change by one thing at a time:

| host | what it is |
|---|---|
| reference | the reference's host: 1000 B in 1048 B on the wire, an acknowledgement per packet that carries the CNP flag, no window (but in `ws50_dcqcn_win`) |
| a | the shipped transport with go-back-N, path MTU 1024, an acknowledgement per packet, no window of packets (65536), and links in whole nanoseconds as the reference's |
| b | a, but links take exact time |
| c | b, but an acknowledgement is asked for on every 32nd packet, as shipped |
| go-back-N, 1024 | c, but 128 packets may be on the way, as shipped: this is `rocexdp run` |
| go-back-N, 4096; selective repeat, 1024 and 4096 | the same with that path MTU, with that repair |
| d | c with path MTU 4096: no window of packets |
| e | d, and the switches' Pmax four times as large |
| f | d, and DCQCN with ConnectX's defaults, which `rocexdp run` has, instead of the experiment's parameters |
| `dcqcn-window` | c with that controller: a window of one bandwidth-delay product that shrinks with the rate, none of packets |
| `fixed` | line rate whatever the network says: with the window of 128 packets, and without (c) |

What changes, and why; each cause is a pair of rows that differ in nothing else (`rocexdp-fabric/tests/shipped_runs.rs` keeps small ones):

* **The transport itself: nothing but the frames** (reference, a). Queue, cuts, alpha and CNPs are the reference's, as far as one run's chance
  allows (compare \"mean of 5\" above). Goodput at the same utilisation is less by 0.8 %: 58 B of headers around 1024 B, 48 B around 1000 B there.
* **Exact time** (a, b). The reference cuts a frame's time down to whole nanoseconds, so its links carry up to 1 % more than their rate; ours
  do not. (With whole nanoseconds come its rules of admission and pause frames too, which only the PFC cases can tell.) Utilisation falls by at most that, to 1.
* **Coalesced acknowledgements: nothing, to the last digit** (b, c). Without a window an acknowledgement lets nothing out, and a CNP is a packet
  of its own that waits for none. With a window they return in time for it.
* **The window of 128 packets** (c, go-back-N 1024) holds 138 kB of each flow. Where that, times the flows, less what the link holds, stays below Kmin
  (2:1 at 100 Gb/s), nothing is ever marked: full link, perfect shares, DCQCN asleep, whatever its parameters. Between Kmin and Kmax (4:1 at 100 Gb/s)
  it takes half of the cuts' work, and since marks are rare the shares move towards one another more slowly (Jain's index of the whole run is lower). At 8:1, and at 25 and 40 Gb/s, whose
  thresholds are lower, it does little or nothing. With path MTU 4096 it is four times as large and hardly ever holds (go-back-N 4096, d).
* **Path MTU 4096** (c, d). Goodput is 4 % more for the headers saved. Marks are drawn per packet, and there are a quarter as many: for
  as many CNPs per second the queue must stand higher, by half to three quarters in the mean; where the thresholds leave little room (`zhu40`: Kmin is one packet) it passes Kmax
  at times, all are marked and cut together, CNPs multiply and 1 to 2 % of the link are lost. With Pmax four times as large (e) marks come as often as with 1000 B: the thresholds that
  were tuned with the one packet size do not fit the other.
* **Selective repeat: 24 B more of headers per packet** (2 % at 1024, 0.6 % at 4096), nothing else, since nothing is lost. Before these runs it was more: where DCQCN
  paces a QP slowly, the acknowledgement of every 32nd packet came later than the probe for a lost tail, which sent up to 5 % of all packets again. A packet
  now asks for its acknowledgement where half a round trip has passed since the last that did.
* **`dcqcn-window`** (c, `dcqcn-window`) bounds the queue to one bandwidth-delay product a flow: at 100 Gb/s nothing is marked and all shares are equal up to 8:1; at 40 Gb/s (`zhu40_4to1`, whose Kmin is one packet) marks go on. **`fixed`** hears the marks and does
  nothing: with the window of 128 packets the queue is what the windows hold, without it what PFC lets in.
* **ConnectX's defaults** (d, f; \"The first transient\" below). Their steps are 5 and 50 Mb/s whatever the line rate, a tenth to a quarter of the other sets', and alpha starts at 1 with a cut every 4 us: the queue of the
  first microseconds is still draining, and marked, while the rate is halved ten or fifteen times, to some 10 Mb/s. After 300 us without a CNP one increase takes it half-way back to the line rate. That is the
  defaults' own; what was ours was that the pacer kept the send time that it had set at the bottom, where a packet of 4 KiB takes up to 33 ms (at the floor of 1 Mb/s), while the rate was
  at 50 Gb/s again. The flows that slept found the link taken and no marks to make the others give way: 49 against 16 Gb/s for 300 ms. The pacer now pays what is owed at the rate of
  the moment (`dcqcn/pacer.rs`).
* **PFC.** At path MTU 1024 the pauses are the reference's, within a quarter or so: its windows hold as much as the buffer. At 4096 queues stand higher, for the reason above, and pass the PFC
  threshold of a small buffer more often: with 2 MB, 8:1 has eight times and 16:1 six times as many pauses. Headroom for the larger packets is enough: there are no drops.
";
pub const INCAST: &str = "\n### Incast\n";
pub const TROUGH: &str = "
### The first transient with ConnectX's defaults

4:1 at 100 Gb/s (`mlx100_4to1`, host f): rates of the four flows with the number of their cuts, and alphas.

| us | queue, B | rates, Gb/s (cuts) | alpha |
|---|---|---|---|
";
pub const LATE: &str = "
### A flow comes late, a flow leaves

Share: goodput of the flow that came last over the millisecond that ends 1, 5 and 20 ms after its start, 1 is fair. Refilled: from one flow's end until
the other's rate is 90 and 99 % of the line.

| run | host | share at 1 ms | 5 ms | 20 ms | refilled to 90 %, ms | 99 % | utilisation | queue mean, B | cuts/flow/ms | mean alpha |
|---|---|---|---|---|---|---|---|---|---|---|
";
pub const PFC: &str = "
### PFC

| run | host | pauses | first 5 ms | time paused, us | utilisation | Jain | queue mean, B | queue max, B | CNPs/s | drops | sent again, % |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
pub const WEBSEARCH_HEAD: &str = "
### WebSearch on a leaf-spine

Slowdown by size, mean / p99, against the reference's ideal time.

| run | host | <10KB | 10-100KB | 100KB-1MB | 1-10MB | >10MB | all | not ended | pauses | drops | sent again, % |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
pub const LOSSES: &str = "
### Loss

One QP at 100 Gb/s, loss of what goes the way of the data; the share of the link that it uses. On the left the published runs (ConWeave's simulator, 1000 B; go-back-N
and IRN, whose lost retransmissions wait for a timer), on the right ours: the table that `rocexdp-sim/tests/loss_table.rs` runs and keeps.

| round trip | loss | ideal, 1 - loss | go-back-N | IRN | ours: go-back-N, WRITE 1024 | 4096 | selective repeat, WRITE 1024 | 4096 | go-back-N, READ 1024 | 4096 | selective repeat, READ 1024 | 4096 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";
