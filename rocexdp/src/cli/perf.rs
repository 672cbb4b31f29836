//! `rocexdp perf`: perftest's options, as far as they mean something here.

use rocexdp_proto::ids::PathMtu;

use super::{UsageError, ends::End};
use crate::{
    control::units::{ByteSize, Span},
    oob::pair::Service,
    out,
    perf::{
        self,
        plan::{AtomicKind, DEFAULT_PORT, Length, Plan, Test, Wishes},
    },
};

/// Options of `rocexdp perf`.
///
/// The other end runs the perftest program of the same name (`rocexdp perf write-bw` and `ib_write_bw`), or `rocexdp perf`, with the
/// same -s, -n, -q, -b, -D and -c; without HOST this end waits for it. Interface and addresses are this host's; perftest's -x chooses
/// the peer's: a GID index of RoCE v2.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The test
    test: Test,
    /// Host that waits for us; without it we wait
    host: Option<String>,
    /// TCP port of the exchange
    #[arg(short, long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    port: u16,
    #[command(flatten)]
    end: End,
    /// Service; UC for SEND and WRITE only, UD for SEND only
    #[arg(short, long, value_name = "RC|UC|UD", default_value = "RC")]
    connection: Service,
    /// Bytes of a message, up to 8M [default: 65536, for latency 2, for atomics 8]
    #[arg(short, long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// All sizes, 2 B to 8 MiB
    #[arg(short, long)]
    all: bool,
    /// Messages per queue pair [default: 1000, for write-bw 5000]
    #[arg(short = 'n', long = "iters", value_name = "N")]
    iterations: Option<u64>,
    /// Run so long instead, the margins at both ends included
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<Span>,
    /// With -D: time not counted at the beginning, and at the end [default: a quarter]
    #[arg(short = 'f', long, value_name = "SECONDS")]
    margin: Option<Span>,
    /// Queue pairs at once
    #[arg(short, long, value_name = "N")]
    qp: Option<u32>,
    /// Both directions at once
    #[arg(short, long)]
    bidirectional: bool,
    /// Largest path MTU to agree on: 256, 512, 1024, 2048 or 4096 B [default: what the interface carries]
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Send requests outstanding per queue pair [default: 128, for latency 1]
    #[arg(short, long, value_name = "N")]
    tx_depth: Option<u32>,
    /// Receive requests outstanding per queue pair [default: 512, with UC and UD 16000]
    #[arg(short, long, value_name = "N")]
    rx_depth: Option<u32>,
    /// A completion for every N requests [default: 100; 1 for messages longer than 8 KiB]
    #[arg(short = 'Q', long, value_name = "N")]
    cq_mod: Option<u32>,
    /// READs and atomics unanswered at once [default: 128]
    #[arg(short, long, value_name = "N")]
    outs: Option<u8>,
    /// Messages up to so many bytes are copied when posted, at most 256
    #[arg(
        short = 'I',
        long = "inline_size",
        value_name = "BYTES",
        default_value_t = 0
    )]
    inline: u32,
    /// Which atomic
    #[arg(
        short = 'A',
        long = "atomic_type",
        value_name = "TYPE",
        default_value = "FETCH_AND_ADD"
    )]
    atomic: AtomicKind,
    /// Local ACK timeout, 4.096 us x 2^CODE, 1 to 31 (17: 0.54 s; perftest has 14, too short for a peer in software under load)
    #[arg(short = 'u', long, value_name = "CODE", default_value_t = 17)]
    qp_timeout: u8,
    /// Sleep while waiting for a completion, at once
    #[arg(short, long)]
    events: bool,
    /// Don't look for the peak bandwidth
    #[arg(short = 'N', long = "noPeak")]
    no_peak: bool,
    /// Gb/s instead of MiB/s in the table
    #[arg(long = "report_gbits")]
    report_gbits: bool,
    /// Give up after so long without a completion, or without the peer's next step
    #[arg(long, value_name = "TIME")]
    patience: Option<Span>,
    /// Print JSON, when all is done
    #[arg(long)]
    json: bool,
    /// perftest's; nothing here depends on the processor's frequency
    #[arg(short = 'F', long = "CPU-freq", hide = true)]
    cpu_freq: bool,
    /// perftest's; see --address
    #[arg(short = 'x', long, value_name = "INDEX", hide = true)]
    gid_index: Option<u8>,
    /// perftest's; there is no port to choose
    #[arg(short = 'i', long, value_name = "PORT", hide = true)]
    ib_port: Option<u8>,
    /// perftest's
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    rdma_cm: bool,
}

/// Checks the options and runs the test.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.gid_index.is_some() {
        out::note(
            "rocexdp: -x is ignored: an interface has addresses here, no GID indices (--address chooses one, --ipv6 a kind)",
        );
    }
    perf::run(plan(args)?)
}

fn plan(args: Args) -> Result<Plan, UsageError> {
    if args.rdma_cm {
        return Err(UsageError(
            "-R: queue pairs are connected over TCP here, as perftest does without -R".to_owned(),
        ));
    }
    let path_mtu = match args.mtu {
        None => None,
        Some(bytes) => Some(PathMtu::from_bytes(bytes).ok_or_else(|| {
            UsageError(format!("-m {bytes}: must be 256, 512, 1024, 2048 or 4096"))
        })?),
    };
    if !(1..=31).contains(&args.qp_timeout) {
        return Err(UsageError(format!(
            "-u {}: must be 1 to 31",
            args.qp_timeout
        )));
    }
    let size = match args.size {
        None => None,
        Some(ByteSize(bytes)) => {
            Some(u32::try_from(bytes).map_err(|_| UsageError(format!("-s {bytes}: at most 8M")))?)
        }
    };
    let patience = args.patience.unwrap_or(Span(match args.connection {
        Service::Rc => std::time::Duration::from_secs(60),
        // What was lost does not come.
        Service::Uc | Service::Ud => std::time::Duration::from_secs(10),
    }));
    let wishes = Wishes {
        all: args.all,
        size,
        iterations: args.iterations,
        duration: args.duration.map(|span| span.0),
        margin: args.margin.map(|span| span.0),
        qps: args.qp,
        tx_depth: args.tx_depth,
        rx_depth: args.rx_depth,
        cq_mod: args.cq_mod,
        outstanding: args.outs,
        inline: args.inline,
        bidirectional: args.bidirectional,
        no_peak: args.no_peak,
    };
    let (options, wish) = args.end.chosen();
    let plan = Plan {
        test: args.test,
        host: args.host,
        port: args.port,
        options,
        service: args.connection,
        wish,
        sizes: Vec::new(),
        length: Length::Iterations(0),
        qps: 1,
        tx_depth: 1,
        rx_depth: 1,
        cq_mod: 1,
        outstanding: 1,
        inline: 0,
        path_mtu,
        timeout: args.qp_timeout,
        bidirectional: false,
        peak: false,
        atomic: args.atomic,
        gigabits: args.report_gbits,
        events: args.events,
        patience: patience.0,
        json: args.json,
    };
    plan.complete(&wishes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        plan(line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn perftests_options_mean_the_same() {
        let line = "write-bw 10.0.0.2 -d eth1 -p 7000 -s 4000 -n 5 -q 2 -m 1024 -b -t 16 -F -x 1 -c UC -I 64 --report_gbits";
        let plan = parse(line).unwrap();
        assert_eq!(plan.host.as_deref(), Some("10.0.0.2"));
        assert_eq!(plan.options.iface.as_deref(), Some("eth1"));
        assert_eq!((plan.port, plan.sizes, plan.qps), (7000, vec![4000], 2));
        assert_eq!(plan.length, Length::Iterations(5));
        assert_eq!(plan.path_mtu, Some(PathMtu::Mtu1024));
        assert_eq!((plan.tx_depth, plan.inline), (5, 64));
        assert!(plan.bidirectional && plan.gigabits && plan.service == Service::Uc);
        let plan = parse("send-lat -D 10 -e").unwrap();
        assert!(plan.host.is_none() && plan.events);
    }

    #[test]
    fn options_that_mean_nothing_here_say_why() {
        for (line, part) in [
            ("write-bw -R", "over TCP"),
            ("write-bw -m 1500", "-m 1500"),
            ("write-bw -u 0", "-u 0"),
            ("read-bw -c UC", "-c UC"),
            ("write-bw -c UD", "-c UD"),
            ("write-bw -s 5G", "at most 8M"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
