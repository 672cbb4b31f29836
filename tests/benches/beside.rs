//! `cargo xtask bench interop`: rocexdp beside the kernel's Soft-RoCE, in one virtual machine.
//!
//! Both have a veth pair in the same guest, on the same kernel and the same emulated processor, with the same message size, number of
//! messages, queue depth and path MTU: perftest's programs for Soft-RoCE, `rocexdp perf` for rocexdp. They take turns, and a ratio is of
//! two runs that followed one another; what is printed is the median over the rounds, since the machine may be shared.
//!
//! `--kernel 6.1|6.12`, `--rounds N`, `--messages N`, `--write` (the table into `docs/benchmarks.md`). Must not: judge.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a measurement that can't be made fails by panic"
)]

use std::{
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Duration,
};

use rocexdp_tests::{
    rig,
    softroce::{Inside, Kernel},
};

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a program of perftest is started that does not end, and rounds are begun again.
const RUNS: u32 = 3;
/// Bytes of a message where bandwidth is measured.
const LARGE: u32 = 65_536;
/// Bytes of a message where latency is measured.
const SMALL: u32 = 8;
/// As perftest has it: what a peer in software needs not to send again in vain.
const TIMEOUT: u32 = 20;
const BYTES_PER_MIB: f64 = 1_048_576.0;
/// Bytes per second of 1 Gb/s.
const GBPS: f64 = 125_000_000.0;

struct Options {
    kernel: Kernel,
    rounds: usize,
    messages: u32,
    write: bool,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            kernel: Kernel::V6_12,
            rounds: 5,
            messages: 1000,
            write: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .unwrap_or_else(|| panic!("{word} needs a value"))
            };
            match word.as_str() {
                "--kernel" => {
                    options.kernel = match value().as_str() {
                        "6.1" => Kernel::V6_1,
                        "6.12" => Kernel::V6_12,
                        other => panic!("--kernel {other}: there are 6.1 and 6.12"),
                    }
                }
                "--rounds" => options.rounds = value().parse().expect("--rounds N"),
                "--messages" => options.messages = value().parse().expect("--messages N"),
                "--write" => options.write = true,
                // Of `cargo bench` itself.
                "--bench" => {}
                other => panic!("unknown option {other}"),
            }
        }
        options
    }
}

/// What is measured: the name in `ib_NAME_bw` and `rocexdp perf NAME-bw`.
#[derive(Clone, Copy)]
struct Case {
    operation: &'static str,
    latency: bool,
}

impl Case {
    fn line(self, path_mtu: u32, messages: u32) -> String {
        let (size, more) = if self.latency {
            (SMALL, "")
        } else {
            // Those of perftest, said because they must be equal.
            (LARGE, " -t 128 -Q 1")
        };
        format!("-s {size} -n {messages} -m {path_mtu} -u {TIMEOUT}{more}")
    }

    fn kind(self) -> &'static str {
        if self.latency { "lat" } else { "bw" }
    }

    fn unit(self) -> &'static str {
        if self.latency { "us" } else { "MiB/s" }
    }
}

/// What one run of one of them gave.
struct Measured {
    /// MiB/s, or the median of half a round trip (READ: a whole one) in us.
    figure: f64,
    /// Packets sent again, by both ends.
    sent_again: u64,
}

struct Bench {
    inside: Inside,
    path_mtu: u32,
    messages: u32,
}

impl Bench {
    fn soft_roce(&self, case: Case) -> Measured {
        let (operation, kind) = (case.operation, case.kind());
        let before = self.rxe_sent_again();
        let line = format!(
            "ib_{operation}_{kind} {}",
            case.line(self.path_mtu, self.messages)
        );
        // rxe has been seen to stand still for ever on a busy machine.
        let said = (0..RUNS).find_map(|_| {
            let run = AssertUnwindSafe(|| self.inside.perftest(&line, LIMIT));
            catch_unwind(run).ok()
        });
        let said = said.unwrap_or_else(|| panic!("{line}: did not end in {RUNS} runs"));
        let numbers = table(&said).unwrap_or_else(|| panic!("{line}: no result: {said}"));
        Measured {
            // bytes, iterations, and then: peak, average; least, largest, typical.
            figure: numbers[if case.latency { 4 } else { 3 }],
            sent_again: self.rxe_sent_again() - before,
        }
    }

    /// As the receiving ends count: requests that came again.
    fn rxe_sent_again(&self) -> u64 {
        let counters = "cat /sys/class/infiniband/rxe-?/ports/1/hw_counters/duplicate_request";
        let said = self.inside.guest().run(counters).ok().stdout;
        said.lines()
            .map(|line| line.trim().parse::<u64>().unwrap())
            .sum()
    }

    fn rocexdp(&self, case: Case) -> Measured {
        let (operation, kind) = (case.operation, case.kind());
        let line = format!(
            "{operation}-{kind} {}",
            case.line(self.path_mtu, self.messages)
        );
        let ends = self.inside.perf(&line, LIMIT);
        let [client, _] = &ends;
        assert_eq!(client["path_mtu"], self.path_mtu, "{client}");
        let row = &client["results"][0];
        let figure = if case.latency {
            row["median_us"].as_f64().unwrap()
        } else {
            row["gigabits_per_second"].as_f64().unwrap() * GBPS / BYTES_PER_MIB
        };
        let sent_again = ends.iter().map(|end| end["retransmitted_packets"].as_u64());
        Measured {
            figure,
            sent_again: sent_again.map(|packets| packets.expect("a number")).sum(),
        }
    }
}

/// The numbers of the first line of perftest's table.
fn table(said: &str) -> Option<Vec<f64>> {
    let mut lines = said.lines().skip_while(|line| !line.contains("#bytes"));
    lines.next()?;
    let words = lines.next()?.split_whitespace();
    Some(words.map_while(|word| word.parse().ok()).collect())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len().is_multiple_of(2) {
        f64::midpoint(numbers[middle - 1], numbers[middle])
    } else {
        numbers[middle]
    }
}

/// What the rounds of one case gave, Soft-RoCE first.
#[derive(Default)]
struct Rounds(Vec<[Measured; 2]>);

impl Rounds {
    fn medians(&self) -> [f64; 2] {
        [0, 1].map(|at| median(self.0.iter().map(|round| round[at].figure).collect()))
    }

    /// rocexdp's figure by Soft-RoCE's, of each round, in order.
    fn ratios(&self) -> Vec<f64> {
        let ratio = |[rxe, ours]: &[Measured; 2]| ours.figure / rxe.figure;
        let mut ratios: Vec<f64> = self.0.iter().map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    fn sent_again(&self) -> [u64; 2] {
        [0, 1].map(|at| self.0.iter().map(|round| round[at].sent_again).sum())
    }
}

fn main() {
    let options = Options::parse();
    let rocexdp = rig::product().expect("the rocexdp binary: ROCEXDP_BIN");
    let mut cases = Vec::new();
    for latency in [false, true] {
        for operation in ["send", "write", "read"] {
            cases.push((Case { operation, latency }, Rounds::default()));
        }
    }
    let mut begun_again = 0;
    for round in 0..options.rounds {
        // In a guest of its own: Soft-RoCE that has hung once stays as it is until its machine ends.
        let measured = loop {
            let run = AssertUnwindSafe(|| one_round(&options, &rocexdp, round, &cases));
            if let Ok(measured) = catch_unwind(run) {
                break measured;
            }
            begun_again += 1;
            println!("round {round}: begun again in another guest, see above");
            assert!(begun_again <= RUNS, "{begun_again} rounds did not end");
        };
        for ((_, rounds), pair) in cases.iter_mut().zip(measured) {
            rounds.0.push(pair);
        }
    }

    let text = report(&options, begun_again, &cases);
    print!("\n{text}");
    if options.write {
        write(options.kernel, &text);
    }
}

/// AF_XDP of 6.1 takes no frames of several buffers, and veth no larger MTU with a program that does not.
fn mtus(kernel: Kernel) -> (u32, u32) {
    match kernel {
        Kernel::V6_1 => (2200, 2048),
        Kernel::V6_12 => (4200, 4096),
    }
}

/// Both, once for each case, in a guest of their own.
fn one_round(
    options: &Options,
    rocexdp: &Path,
    round: usize,
    cases: &[(Case, Rounds)],
) -> Vec<[Measured; 2]> {
    let (mtu, path_mtu) = mtus(options.kernel);
    let Some(inside) = Inside::up("rxb", options.kernel, mtu, rocexdp, &[]) else {
        panic!("there is no guest to measure in");
    };
    let bench = Bench {
        inside,
        path_mtu,
        messages: options.messages,
    };
    if round == 0 {
        let processor = "uname -r; grep -m1 'model name' /proc/cpuinfo; grep -c ^processor /proc/cpuinfo; \
            grep -qw pclmulqdq /proc/cpuinfo && echo 'with carry-less multiply' || echo 'no carry-less multiply'";
        let about = bench.inside.guest().run(processor).ok().stdout;
        println!("{}", about.trim().replace('\n', ", "));
    }
    let measure = |&(case, _): &(Case, Rounds)| {
        let (rxe, ours);
        if round.is_multiple_of(2) {
            rxe = bench.soft_roce(case);
            ours = bench.rocexdp(case);
        } else {
            ours = bench.rocexdp(case);
            rxe = bench.soft_roce(case);
        }
        println!(
            "round {round}: {} {}: Soft-RoCE {:.2}, rocexdp {:.2} {}",
            case.operation,
            case.kind(),
            rxe.figure,
            ours.figure,
            case.unit()
        );
        [rxe, ours]
    };
    cases.iter().map(measure).collect()
}

fn report(options: &Options, begun_again: u32, cases: &[(Case, Rounds)]) -> String {
    let mut text = format!(
        "| kernel {}, path MTU {}, {} rounds, {begun_again} begun again | Soft-RoCE | rocexdp | ratio | least and largest | sent again |\n|---|---|---|---|---|---|\n",
        options.kernel.name(),
        mtus(options.kernel).1,
        options.rounds
    );
    for (case, rounds) in cases {
        let [rxe, ours] = rounds.medians();
        let ratios = rounds.ratios();
        let (least, largest) = (ratios[0], ratios[ratios.len() - 1]);
        let [rxe_again, our_again] = rounds.sent_again();
        let what = case.operation.to_uppercase();
        let (what, unit) = if case.latency {
            (format!("{what} of {SMALL} B, latency"), case.unit())
        } else {
            (format!("{what} of 64 KiB, bandwidth"), case.unit())
        };
        writeln!(
            text,
            "| {what} | {rxe:.1} {unit} | {ours:.1} {unit} | {:.2} | {least:.2}, {largest:.2} | {rxe_again}, {our_again} |",
            median(ratios.clone())
        )
        .unwrap();
    }
    text
}

/// Puts the table into `docs/benchmarks.md`, between its kernel's marks.
fn write(kernel: Kernel, table: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let begin = format!(
        "<!-- {}: written by `cargo xtask bench interop --write` -->\n",
        kernel.name()
    );
    let end = format!("<!-- end of {} -->", kernel.name());
    let (head, rest) = text.split_once(&begin).expect("the mark of its begin");
    let (_, tail) = rest.split_once(&end).expect("the mark of its end");
    std::fs::write(&file, format!("{head}{begin}{table}{end}{tail}")).unwrap();
}
