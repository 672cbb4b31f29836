//! What memory of each kind takes and refuses.

use super::*;

#[test]
fn ranges_outside_the_buffer_fault() {
    let b = Buffer::new(10).unwrap();
    assert!(b.write(0, &[1; 10]).is_ok());
    assert!(b.write(10, &[]).is_ok());
    for (offset, len) in [(1, 10), (11, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        assert_eq!(
            b.write(offset, &vec![0; len]),
            Err(MemoryFault),
            "{offset} {len}"
        );
        assert_eq!(
            b.read(offset, &mut vec![0; len]),
            Err(MemoryFault),
            "{offset} {len}"
        );
    }
    let mut back = [0; 10];
    b.read(0, &mut back).unwrap();
    assert_eq!(back, [1; 10]);
}

#[test]
fn a_mapped_file_shows_what_was_written() {
    let file = tempfile::tempfile().unwrap();
    assert!(
        MappedFile::map_rw(&file, 5000).is_err(),
        "longer than the file"
    );
    file.set_len(5000).unwrap();
    let m = MappedFile::map_rw(&file, 5000).unwrap();
    m.write(4090, b"across a page").unwrap();
    let mut back = vec![0; 13];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 4090).unwrap();
    assert_eq!(&back, b"across a page");
    assert_eq!(MappedFile::map_rw(&file, 0).unwrap().len(), 0);
}

#[test]
fn nothing_is_written_through_a_read_only_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    io::Write::write_all(&mut file, &[7; 100]).unwrap();
    let readable = File::open(file.path()).unwrap();
    let m = ReadOnlyFile::map(&readable, 100).unwrap();
    assert_eq!(m.write(0, &[1]), Err(MemoryFault));
    assert_eq!(m.atomic(0, Atomic::FetchAdd(1)), Err(MemoryFault));
    assert_eq!(m.load(8), Ok(0x0707_0707_0707_0707));
    assert!(
        MappedFile::map(&readable, 100).is_err(),
        "opened for reading only"
    );
}

#[test]
fn words_are_whole_and_aligned_and_every_atomic_gives_what_stood_there() {
    let b = Buffer::map(20).unwrap();
    for offset in [1, 4, 13, 16, u64::MAX] {
        assert_eq!(b.load(offset), Err(MemoryFault), "{offset}");
        assert_eq!(b.atomic(offset, Atomic::Write(1)), Err(MemoryFault));
    }
    assert_eq!(b.atomic(8, Atomic::Write(5)), Ok(0));
    assert_eq!(b.atomic(8, Atomic::FetchAdd(u64::MAX)), Ok(5));
    let swap = |compare| Atomic::CompareSwap { compare, swap: 9 };
    assert_eq!(b.atomic(8, swap(5)), Ok(4));
    assert_eq!((b.load(8), b.atomic(8, swap(4))), (Ok(4), Ok(4)));
    assert_eq!(b.load(8), Ok(9));
    let mut bytes = [0; 8];
    b.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 9);
}

#[test]
fn atomics_of_two_threads_lose_no_addition() {
    let b = Buffer::new(16).unwrap();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..100_000 {
                    b.atomic(8, Atomic::FetchAdd(3)).unwrap();
                }
            });
        }
    });
    assert_eq!(b.load(8), Ok(600_000));
    assert_eq!(b.load(0), Ok(0));
}

#[test]
fn a_mapped_file_can_be_made_to_last_and_a_buffer_can_not() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(10_000).unwrap();
    let m = MappedFile::map(&file, 10_000).unwrap();
    m.write(5000, b"kept").unwrap();
    assert_eq!(m.flush(5000, 4, true), Ok(()));
    assert_eq!(m.flush(9_999, 2, true), Err(MemoryFault));
    let b = Buffer::map(4096).unwrap();
    assert_eq!(b.flush(0, 1, true), Err(MemoryFault));
    assert_eq!(b.flush(0, 1, false), Ok(()));
}

#[test]
fn borrowed_memory_is_given_back_when_it_is_no_longer_used() {
    let owner = Arc::new(());
    let bytes = Box::leak(vec![0u8; 64].into_boxed_slice());
    // SAFETY: leaked; no reference to it is used any more.
    let memory = unsafe { Borrowed::new(NonNull::from(bytes).cast(), 64, Arc::clone(&owner)) };
    memory.write(60, &[1, 2, 3, 4]).unwrap();
    assert_eq!(memory.write(61, &[0; 4]), Err(MemoryFault));
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&owner), 1);
}
