//! A key-value store whose GETs are one-sided: the client READs the server's table, and no processor of the server takes part. PUTs go by
//! SEND, so that the server alone writes.
//!
//! A READ may meet a slot that is just being written, and its packets are filled at different times, so it may see any mixture of old and
//! new bytes. Each slot therefore carries a version, odd while it is being written, and a checksum over version, key and value; a reader
//! that finds either wrong READs again.
//!
//! `cargo xtask example kv` runs both ends in a lab. Between two hosts, as root:
//!
//! ```sh
//! kv --iface eth1 serve 192.0.2.2:7100                        # on one
//! kv --iface eth1 put 192.0.2.2:7100 colour blue              # on the other
//! kv --iface eth1 get 192.0.2.2:7100 colour
//! kv --iface eth1 stress 192.0.2.2:7100                       # GETs beside PUTs of the same keys, all checked
//! ```

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand};
use rocexdp::{
    mem::Buffer,
    rdma::{
        Access, CompletionQueue, Connect, CqeOpcode, Device, Done, Listener, ProtectionDomain,
        QueuePair, ReadWrite, Region, RemoteRegion, Source, Wr,
    },
};

/// A key-value store over RDMA: PUT by SEND, GET by READ
#[derive(Parser)]
struct Cli {
    /// Interface of the RDMA device
    #[arg(long, default_value = "eth0")]
    iface: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep the table; until ended
    Serve {
        /// Where to listen: an address of the interface
        address: SocketAddr,
    },
    /// Set a key
    Put {
        /// The serving end
        address: SocketAddr,
        /// The key
        key: String,
        /// Its value
        value: String,
    },
    /// Read a key; exit code 1 if there is none
    Get {
        /// The serving end
        address: SocketAddr,
        /// The key
        key: String,
    },
    /// GETs over one connection beside PUTs of the same keys over another, every value checked
    Stress {
        /// The serving end
        address: SocketAddr,
        /// GETs
        #[arg(long, default_value_t = 20_000)]
        gets: u64,
    },
}

/// Bytes of a slot: version, checksum, lengths of key and value, key, value.
const SLOT: usize = 256;
const HEAD: usize = 20;
/// Slots of a bucket, which one READ fetches: a key is in one of those of its bucket.
const WAYS: usize = 8;
const BUCKET: usize = SLOT * WAYS;
/// Buckets of the table, 2 MiB.
const BUCKETS: u64 = 1024;
/// Most bytes of a key and its value together.
const ROOM: usize = SLOT - HEAD;
/// PUTs of one client that may be under way.
const DEPTH: u32 = 16;
/// An answer that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);
/// READs of one GET before the key is given up: each met a PUT.
const TRIES: u32 = 1000;

/// FNV-1a, 64 bits.
fn hash(parts: &[&[u8]]) -> u64 {
    parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
}

fn bucket(key: &[u8]) -> u64 {
    hash(&[key]) % BUCKETS * BUCKET as u64
}

/// A key and its value.
type Entry<'a> = (&'a [u8], &'a [u8]);

/// A slot's bytes, as they were at one time or mixed from several.
struct Slot<'a>(&'a [u8]);

impl<'a> Slot<'a> {
    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..at + N).and_then(|b| b.try_into().ok());
        bytes.unwrap_or([0; N])
    }

    fn version(&self) -> u64 {
        u64::from_le_bytes(self.number(0))
    }

    /// Key and value of a slot that is whole; `Ok(None)` for an empty one, an error for one that is being written.
    fn entry(&self) -> Result<Option<Entry<'a>>, Torn> {
        let version = self.version();
        if version == 0 {
            return Ok(None);
        }
        let [key, value] = [16, 18].map(|at| usize::from(u16::from_le_bytes(self.number(at))));
        let body = self.0.get(HEAD..HEAD + key + value).ok_or(Torn)?;
        let (lengths, checksum) = (self.number::<4>(16), u64::from_le_bytes(self.number(8)));
        if version % 2 == 1 || hash(&[&version.to_le_bytes(), &lengths, body]) != checksum {
            return Err(Torn);
        }
        Ok(Some(body.split_at(key)))
    }
}

/// The bytes are of a slot that was being written.
#[derive(Debug, PartialEq)]
struct Torn;

/// What the client needs of the table: its region.
type Table = Region<ReadWrite>;

/// Puts a value into the table. Only one at a time may.
fn put(table: &Table, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
    ensure!(
        key.len() + value.len() <= ROOM,
        "key and value have more than {ROOM} bytes"
    );
    let start = bucket(key);
    let mut bytes = vec![0; BUCKET];
    // Nobody else writes: what is read here is whole.
    table.read(start, &mut bytes)?;
    let mut free = None;
    let mut found = None;
    for (way, slot) in bytes.chunks_exact(SLOT).enumerate() {
        match Slot(slot).entry() {
            Ok(Some((there, _))) if there == key => found = Some(way),
            Ok(None) => free = free.or(Some(way)),
            _ => {}
        }
    }
    let way = found.or(free).context("the key's bucket is full")?;
    let at = start + (way * SLOT) as u64;
    let old = Slot(bytes.get(way * SLOT..).unwrap_or_default()).version();
    let new = slot_bytes(old + 2, key, value);
    // Odd first, even last. Readers on other processors may see the stores in between in any order: the checksum tells.
    table.word(at)?.store((old + 1).to_le());
    table.write(at + 8, new.get(8..).unwrap_or_default())?;
    table.word(at)?.store((old + 2).to_le());
    Ok(())
}

/// A slot that is whole.
fn slot_bytes(version: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let lengths = [key.len() as u16, value.len() as u16].map(u16::to_le_bytes);
    let (lengths, body) = (lengths.concat(), [key, value].concat());
    let checksum = hash(&[&version.to_le_bytes(), &lengths, &body]);
    [
        &version.to_le_bytes()[..],
        &checksum.to_le_bytes(),
        &lengths,
        &body,
    ]
    .concat()
}

/// A PUT as it is sent: lengths of key and value, both.
fn put_message(key: &[u8], value: &[u8]) -> Vec<u8> {
    let lengths = [key.len() as u16, value.len() as u16].map(u16::to_le_bytes);
    [&lengths.concat(), key, value].concat()
}

fn read_put(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, rest) = message.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_first_chunk::<2>()?;
    let [key, value] = [key, value].map(|len| usize::from(u16::from_le_bytes(*len)));
    (rest.len() == key + value).then(|| rest.split_at(key))
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let device = Device::open(&cli.iface)?;
    let pd = device.protection_domain()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve { address } => serve(pd, address).await,
            Command::Put {
                address,
                key,
                value,
            } => {
                let client = Client::connect(&pd, address).await?;
                client.put(key.as_bytes(), value.as_bytes()).await
            }
            Command::Get { address, key } => {
                let mut client = Client::connect(&pd, address).await?;
                match client.get(key.as_bytes()).await? {
                    Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                    None => bail!("there is no key {key:?}"),
                }
                Ok(())
            }
            Command::Stress { address, gets } => stress(&pd, address, gets).await,
        }
    })
}

async fn serve(pd: ProtectionDomain, address: SocketAddr) -> anyhow::Result<()> {
    let memory = Buffer::map(BUCKETS as usize * BUCKET)?;
    // Peers may READ, nothing else.
    let table = pd.register(memory, Access::REMOTE_READ)?;
    let offer = table.remote().context("the table has rights")?.to_bytes();
    let table = Arc::new(Mutex::new(table));
    let mut listener = Listener::bind(address, None).await?;
    println!("ready: listening on {}", listener.address());
    loop {
        let incoming = listener.next().await?;
        let (pd, table) = (pd.clone(), Arc::clone(&table));
        tokio::spawn(async move {
            let from = incoming.from();
            let served = async {
                let cq = CompletionQueue::new(4 * DEPTH);
                let inbox = pd.register(Buffer::map(DEPTH as usize * SLOT)?, Access::NONE)?;
                let qp = pd
                    .queue_pair(&cq)
                    .depths(2 * DEPTH, DEPTH)
                    .access(Access::REMOTE_READ)
                    .build()?;
                for n in 0..u64::from(DEPTH) {
                    qp.post_recv(n, inbox.slice(place(n))?)?;
                }
                let qp = incoming.accept(qp, &offer).await?;
                answer(&qp, &inbox, &table).await
            };
            match served.await {
                Ok(puts) => eprintln!("{from}: {puts} PUTs by SEND; GETs are none of our business"),
                Err::<u64, anyhow::Error>(error) => eprintln!("{from}: {error:#}"),
            }
        });
    }
}

/// Where message `n` goes in the server's inbox.
fn place(n: u64) -> std::ops::Range<u64> {
    n * SLOT as u64..(n + 1) * SLOT as u64
}

/// Carries out the PUTs of one client until it closes.
async fn answer(
    qp: &QueuePair,
    inbox: &Region<ReadWrite>,
    table: &Mutex<Table>,
) -> anyhow::Result<u64> {
    let mut puts = 0;
    loop {
        // When the peer closes, the queue pair fails and its receive requests with it.
        let Ok(done) = qp.recv_cq().next().await?.result() else {
            return Ok(puts);
        };
        if done.opcode != CqeOpcode::Recv {
            continue;
        }
        let mut message = vec![0; done.byte_len as usize];
        inbox.read(place(done.id).start, &mut message)?;
        qp.post_recv(done.id, inbox.slice(place(done.id))?)?;
        let stored = match read_put(&message) {
            Some((key, value)) => {
                let table = table.lock().unwrap_or_else(PoisonError::into_inner);
                put(&table, key, value).map_err(|error| error.to_string())
            }
            None => Err("a message that is no PUT".to_owned()),
        };
        puts += 1;
        let reply = stored.err().unwrap_or_default();
        qp.post(Wr::send(Source::inline(reply.as_bytes())))?;
    }
}

struct Client {
    qp: QueuePair,
    table: RemoteRegion,
    memory: Region<ReadWrite>,
    /// READs that met a PUT.
    torn: u64,
}

/// Ids of the client's requests.
const REPLY: u64 = 1;
const ASK: u64 = 2;
const FETCH: u64 = 3;

impl Client {
    async fn connect(pd: &ProtectionDomain, address: SocketAddr) -> anyhow::Result<Self> {
        let cq = CompletionQueue::new(8);
        let qp = pd
            .queue_pair(&cq)
            .depths(4, 2)
            .access(Access::NONE)
            .build()?;
        let qp = qp.connect(address, &Connect::new()).await?;
        let table = RemoteRegion::from_bytes(qp.private_data()).context("no table was offered")?;
        ensure!(
            table.len() == BUCKETS * BUCKET as u64,
            "a table of another form"
        );
        Ok(Self {
            qp,
            table,
            memory: pd.register(Buffer::map(BUCKET + SLOT)?, Access::NONE)?,
            torn: 0,
        })
    }

    async fn completion(&self) -> anyhow::Result<Done> {
        let completion = tokio::time::timeout(PATIENCE, self.qp.send_cq().next()).await;
        Ok(completion.context("no answer within 10 s")??.result()?)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        ensure!(
            key.len() + value.len() <= ROOM,
            "key and value have more than {ROOM} bytes"
        );
        self.qp
            .post_recv(REPLY, self.memory.slice(BUCKET as u64..)?)?;
        let message = Source::inline(&put_message(key, value));
        self.qp.post(Wr::send(message).id(ASK))?;
        let mut reply = vec![];
        for _ in 0..2 {
            let done = self.completion().await?;
            if done.id == REPLY {
                reply.resize(done.byte_len as usize, 0);
            }
        }
        self.memory.read(BUCKET as u64, &mut reply)?;
        ensure!(reply.is_empty(), "{}", String::from_utf8_lossy(&reply));
        Ok(())
    }

    async fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; BUCKET];
        'again: for _ in 0..TRIES {
            let from = self.table.slice(bucket(key), BUCKET as u64)?;
            let into = self.memory.slice(..BUCKET as u64)?;
            self.qp.post(Wr::read(into, from).id(FETCH))?;
            self.completion().await?;
            self.memory.read(0, &mut bytes)?;
            for slot in bytes.chunks_exact(SLOT) {
                match Slot(slot).entry() {
                    Ok(Some((there, value))) if there == key => return Ok(Some(value.to_vec())),
                    Ok(_) => {}
                    // It may be the key's.
                    Err(Torn) => {
                        self.torn += 1;
                        continue 'again;
                    }
                }
            }
            return Ok(None);
        }
        bail!("{TRIES} READs met a PUT each")
    }
}

/// Keys of the stress test: few, so that GETs meet PUTs.
const KEYS: u64 = 4;

/// A value that shows whether it is whole: its number, and bytes that follow from key and number.
fn value_of(key: u64, number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    let seed = hash(&[&key.to_le_bytes(), &number.to_le_bytes()]);
    let len = 8 + (seed % 200) as usize;
    value.extend((8..len).map(|at| (seed >> (at % 8 * 8)) as u8 ^ at as u8));
    value
}

async fn stress(pd: &ProtectionDomain, address: SocketAddr, gets: u64) -> anyhow::Result<()> {
    let writer = Client::connect(pd, address).await?;
    let mut reader = Client::connect(pd, address).await?;
    // The last number that each key was given, before it was asked for.
    let numbers: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    for key in 0..KEYS {
        writer.put(&key.to_le_bytes(), &value_of(key, 0)).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let putting = tokio::spawn({
        let (numbers, stop) = (Arc::clone(&numbers), Arc::clone(&stop));
        async move {
            let mut puts = 0;
            while !stop.load(Ordering::Relaxed) {
                let key = puts % KEYS;
                let number = puts / KEYS + 1;
                writer
                    .put(&key.to_le_bytes(), &value_of(key, number))
                    .await?;
                if let Some(last) = numbers.get(key as usize) {
                    last.store(number, Ordering::Release);
                }
                puts += 1;
            }
            Ok::<u64, anyhow::Error>(puts)
        }
    });
    let begun = Instant::now();
    for n in 0..gets {
        let key = n % KEYS;
        let last = numbers.get(key as usize).map(|n| n.load(Ordering::Acquire));
        let value = reader.get(&key.to_le_bytes()).await?;
        let value = value.with_context(|| format!("key {key} has gone"))?;
        let number = value.first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
        let number = number.context("a value too short")?;
        ensure!(
            value == value_of(key, number),
            "GET {n}: a value of key {key} that nobody PUT"
        );
        // What was PUT and answered before the GET began must be there, or something later.
        ensure!(
            Some(number) >= last,
            "GET {n}: key {key} has old value {number}, not {last:?}"
        );
    }
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let puts = putting.await??;
    println!(
        "{gets} GETs by READ in {:.2} s, every value whole and current; {} READs met a PUT and were done again",
        took.as_secs_f64(),
        reader.torn
    );
    println!("{puts} PUTs by SEND meanwhile");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot's bytes, the rest as an older, longer value left it.
    fn slot(version: u64, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xee; SLOT];
        let new = slot_bytes(version, b"key", value);
        bytes[..new.len()].copy_from_slice(&new);
        bytes
    }

    #[test]
    fn whatever_mixture_of_two_puts_a_read_brings_is_one_of_them_or_torn() {
        let (old, new) = (slot(4, &[7; 100]), slot(6, &[9; 60]));
        let (mut torn, mut whole) = (0, 0);
        for a in 0..=SLOT {
            for b in a..=SLOT {
                // Bytes a..b are new, the others old; and the reverse.
                for (first, second) in [(&old, &new), (&new, &old)] {
                    let mut mixed = first.clone();
                    mixed[a..b].copy_from_slice(&second[a..b]);
                    match Slot(&mixed).entry() {
                        Err(Torn) => torn += 1,
                        Ok(entry) => {
                            whole += 1;
                            let (key, value) = entry.unwrap();
                            assert_eq!(key, b"key");
                            assert!(value == [7; 100] || value == [9; 60], "{a}..{b}");
                        }
                    }
                }
            }
        }
        assert!(torn > 10_000 && whole > 1000, "{torn} {whole}");
    }

    #[test]
    fn a_slot_that_is_being_written_is_torn_and_a_new_one_empty() {
        assert_eq!(Slot(&[0; SLOT]).entry(), Ok(None));
        assert_eq!(Slot(&slot(5, b"odd")).entry(), Err(Torn));
        assert_eq!(
            Slot(&[0xff; SLOT]).entry(),
            Err(Torn),
            "lengths beyond the slot"
        );
        assert_eq!(Slot(&[2; 8]).entry(), Err(Torn), "cut off");
        let whole = slot(2, b"value");
        assert_eq!(Slot(&whole).entry(), Ok(Some((&b"key"[..], &b"value"[..]))));
    }

    #[test]
    fn puts_are_read_as_they_were_sent_and_nothing_else_is() {
        assert_eq!(
            read_put(&put_message(b"k", b"")),
            Some((&b"k"[..], &b""[..]))
        );
        assert_eq!(
            read_put(&put_message(b"key", b"v")),
            Some((&b"key"[..], &b"v"[..]))
        );
        for bad in [&b""[..], &[1, 0, 0], &[1, 0, 0, 0], &[0, 0, 0, 0, 9]] {
            assert_eq!(read_put(bad), None, "{bad:?}");
        }
    }
}
