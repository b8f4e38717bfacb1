//! The arena and its view against real memfds: sizes, seals, page kinds, checksums.

use super::*;
use crate::testing::Seeded;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, fallocate, fcntl_get_seals};

const MIB: u64 = 1 << 20;

fn memfd(bytes: u64, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | flags).unwrap();
    ftruncate(&fd, bytes).unwrap();
    if !seals.is_empty() {
        fcntl_add_seals(&fd, seals).unwrap();
    }
    fd
}

fn view(arena: &Arena, populate: ViewPopulate) -> ArenaView {
    ArenaView::map(arena.fd().try_clone_to_owned().unwrap(), arena.bytes(), populate).unwrap()
}

#[test]
fn the_size_is_sealed_and_the_bytes_are_writable() {
    let (arena, report) = Arena::create(4 * MIB, PagePreference::Small).unwrap();
    assert_eq!(report, ArenaReport { page_kind: PageKind::Small, warning: None });
    let seals = fcntl_get_seals(arena.fd()).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(!seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE));
    assert_eq!(ftruncate(arena.fd(), MIB), Err(Errno::PERM));
    assert_eq!(ftruncate(arena.fd(), 8 * MIB), Err(Errno::PERM));
    assert_eq!(fallocate(arena.fd(), FallocateFlags::empty(), 0, 8 * MIB), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(arena.fd(), SealFlags::WRITE), Err(Errno::PERM));
    arena.copy_in(4 * MIB - 3, b"end");
    let mut end = [0; 3];
    arena.copy_out(4 * MIB - 3, &mut end);
    assert_eq!(&end, b"end");
}

#[test]
fn every_preference_is_met_or_refused_with_its_remedy() {
    let bytes = 6 * MIB;
    let (small, report) = Arena::create(bytes, PagePreference::Small).unwrap();
    assert_eq!((report.page_kind, small.page_kind()), (PageKind::Small, PageKind::Small));
    assert_eq!(small.shared.map.transparent_huge_bytes(), 0);

    match Arena::create(bytes, PagePreference::Thp) {
        Ok((arena, report)) => {
            assert_eq!(report, ArenaReport { page_kind: PageKind::Thp, warning: None });
            assert_eq!(arena.shared.map.transparent_huge_bytes(), bytes);
        }
        Err(error) => assert!(error.to_string().contains("shmem_enabled"), "{error}"),
    }
    match Arena::create(bytes, PagePreference::HugeTlb) {
        Ok((arena, report)) => {
            assert_eq!(report, ArenaReport { page_kind: PageKind::HugeTlb, warning: None });
            arena.copy_in(bytes - 1, &[7]);
        }
        Err(error) => {
            assert!(matches!(error, ArenaError::HugeTlbUnavailable { needed_pages: 3, .. }), "{error}");
            assert!(error.to_string().contains("vm.nr_hugepages=3"), "{error}");
        }
    }
    let (_, report) = Arena::create(bytes, PagePreference::Auto).unwrap();
    assert_eq!(report.page_kind == PageKind::Small, report.warning.is_some());
    if let Some(warning) = report.warning {
        assert!(warning.contains("echo advise > ") && warning.contains("vm.nr_hugepages"), "{warning}");
    }
}

#[test]
fn reserved_pages_are_never_used_for_a_part() {
    // More than any test machine reserves, and no whole number of huge pages either.
    let whole = Arena::create(1 << 50, PagePreference::HugeTlb).unwrap_err();
    assert!(matches!(whole, ArenaError::HugeTlbUnavailable { .. }), "{whole}");
    let odd = Arena::create(2 * MIB + 4_096, PagePreference::HugeTlb).unwrap_err();
    assert!(odd.to_string().contains("multiple of 2 MiB"), "{odd}");
}

#[test]
fn a_length_that_is_no_multiple_of_huge_pages_is_whole() {
    for preference in [PagePreference::Auto, PagePreference::Small] {
        let bytes = 4 * MIB + 12_288;
        let (arena, _) = Arena::create(bytes, preference).unwrap();
        arena.copy_in(bytes - 4, b"tail");
        let view = view(&arena, ViewPopulate::AtMap);
        assert_eq!(view.bytes(bytes - 4, 4).unwrap(), b"tail");
    }
    // Smaller than a huge page: nothing to be had but small ones.
    let (_, report) = Arena::create(4_096, PagePreference::Auto).unwrap();
    assert_eq!(report.page_kind, PageKind::Small);
}

#[test]
fn hopeless_sizes_are_refused_before_anything_is_allocated() {
    for bytes in [0, 1, 4_095, 4_097] {
        assert!(matches!(Arena::create(bytes, PagePreference::Small), Err(ArenaError::Size { .. })));
    }
    let available = memory::available_bytes().unwrap();
    let asked = (available + (8 << 30)).next_multiple_of(2 * MIB);
    for preference in [PagePreference::Small, PagePreference::Auto, PagePreference::Thp] {
        let error = Arena::create(asked, preference).unwrap_err();
        assert!(matches!(error, ArenaError::NotEnoughMemory { bytes, .. } if bytes == asked), "{error}");
        assert!(error.to_string().contains("--dram"));
    }
}

#[test]
fn creation_populates_and_tells_progress() {
    let bytes = 130 * MIB;
    for preference in [PagePreference::Small, PagePreference::Auto] {
        let mut told = Vec::new();
        let (arena, _) = Arena::create_with_progress(bytes, preference, &mut |done| told.push(done)).unwrap();
        assert_eq!(*told.last().unwrap(), bytes);
        assert!(told.len() >= 3, "{told:?}");
        let blocks = rustix::fs::fstat(arena.fd()).unwrap().st_blocks as u64;
        assert!(arena.page_kind() == PageKind::HugeTlb || blocks * 512 >= bytes, "{blocks} blocks");
    }
}

#[test]
#[should_panic(expected = "outside the arena")]
fn a_range_beyond_the_end_panics() {
    let (arena, _) = Arena::create(8_192, PagePreference::Small).unwrap();
    arena.copy_in(8_190, b"abc");
}

#[test]
fn the_view_sees_what_the_arena_holds_and_the_other_way_round() {
    let (arena, report) = Arena::create(8 * MIB, PagePreference::Auto).unwrap();
    let payload = Seeded(1).bytes(3 * MIB as usize + 17);
    for populate in [ViewPopulate::Lazy, ViewPopulate::AtMap, ViewPopulate::Background] {
        let mut view = view(&arena, populate);
        assert_eq!(view.bytes_total(), arena.bytes());
        view.copy_in(MIB, &payload).unwrap();
        let mut back = vec![0; payload.len()];
        arena.copy_out(MIB, &mut back);
        assert!(back == payload);
        arena.copy_in(5, b"from the daemon");
        assert_eq!(view.bytes(5, 15).unwrap(), b"from the daemon");
        view.bytes_mut(8 * MIB - 1, 1).unwrap()[0] = 42;
        let mut last = [0];
        arena.copy_out(8 * MIB - 1, &mut last);
        assert_eq!(last, [42]);
        view.copy_out(MIB, &mut back).unwrap();
        assert!(back == payload);
        arena.copy_in(0, &vec![0; 8 * MIB as usize]);
        if populate == ViewPopulate::AtMap && report.page_kind == PageKind::Thp {
            assert_eq!(view.transparent_huge_bytes(), 8 * MIB);
        }
    }
}

#[test]
fn the_view_refuses_ranges_outside() {
    let (arena, _) = Arena::create(MIB, PagePreference::Small).unwrap();
    let mut view = view(&arena, ViewPopulate::Lazy);
    for (offset, bytes) in [(MIB, 1), (MIB - 1, 2), (u64::MAX, 2), (0, MIB + 1)] {
        let error = RangeError { offset, bytes, arena_bytes: MIB };
        assert_eq!(view.bytes(offset, bytes), Err(error));
        assert_eq!(view.bytes_mut(offset, bytes), Err(error));
    }
    assert!(view.copy_in(MIB - 1, b"ab").is_err());
    assert!(view.copy_out(u64::MAX, &mut [0; 2]).is_err());
    assert_eq!(view.bytes(MIB, 0), Ok(&[][..]));
}

#[test]
fn a_short_or_long_file_is_refused() {
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for bytes in [0, 4_096, MIB - 1, MIB + 1] {
        let fd = memfd(bytes, MemfdFlags::ALLOW_SEALING, wanted);
        let error = ArenaView::map(fd, MIB, ViewPopulate::Lazy).unwrap_err();
        assert!(matches!(error, ArenaViewError::Size { found_bytes, .. } if found_bytes == bytes), "{error}");
    }
    let empty = memfd(0, MemfdFlags::ALLOW_SEALING, wanted);
    assert!(matches!(ArenaView::map(empty, 0, ViewPopulate::Lazy), Err(ArenaViewError::Size { .. })));
    ArenaView::map(memfd(MIB, MemfdFlags::ALLOW_SEALING, wanted), MIB, ViewPopulate::AtMap).unwrap();
}

#[test]
fn any_other_set_of_seals_is_refused() {
    let (shrink, grow, seal) = (SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL);
    let sets = [
        SealFlags::empty(),
        shrink | grow,
        shrink | seal,
        grow | seal,
        seal,
        shrink | grow | seal | SealFlags::WRITE,
        shrink | grow | seal | SealFlags::FUTURE_WRITE,
    ];
    for seals in sets {
        let fd = memfd(MIB, MemfdFlags::ALLOW_SEALING, seals);
        let error = ArenaView::map(fd, MIB, ViewPopulate::Lazy).unwrap_err();
        assert!(matches!(error, ArenaViewError::Seals { found, .. } if found == seals), "{seals:?}: {error}");
    }
    // A memfd without sealing carries F_SEAL_SEAL alone; a file and a pipe carry none.
    let plain = memfd(MIB, MemfdFlags::empty(), SealFlags::empty());
    assert!(matches!(ArenaView::map(plain, MIB, ViewPopulate::Lazy), Err(ArenaViewError::Seals { .. })));
    let file = tempfile::tempfile_in(crate::testing::directory_on_disk().path()).unwrap();
    file.set_len(MIB).unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    for fd in [OwnedFd::from(file), pipe] {
        let error = ArenaView::map(fd, MIB, ViewPopulate::Lazy).unwrap_err();
        assert!(matches!(error, ArenaViewError::NotSealable { .. }), "{error}");
    }
}

#[test]
fn dropping_a_view_stops_its_background_population() {
    let (arena, _) = Arena::create(256 * MIB, PagePreference::Small).unwrap();
    for _ in 0..8 {
        drop(view(&arena, ViewPopulate::Background));
    }
    let mut view = view(&arena, ViewPopulate::Background);
    view.bytes_mut(0, 1).unwrap()[0] = 1;
    // Had the thread gone on, the mapping would be shared and this had panicked.
    assert_eq!(view.bytes(0, 1), Ok(&[1][..]));
}

#[test]
fn the_checksum_is_the_published_function() {
    let (arena, _) = Arena::create(MIB, PagePreference::Small).unwrap();
    // xxh3_64 of the empty input, seed 0, from the reference implementation.
    assert_eq!(arena.checksum(17, 0), 0x2d06_8005_38d3_94c2);
    assert_eq!(Checksum::new(17, 0).step(&arena, 64), Some(0x2d06_8005_38d3_94c2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn steps_give_the_one_shot_checksum(
        seed in any::<u64>(),
        offset in 0..300_000u64,
        length in 0..300_000u64,
        step in prop_oneof![1..300u64, 300..70_000u64, Just(65_536)],
    ) {
        let (arena, _) = Arena::create(MIB, PagePreference::Small).unwrap();
        let payload = Seeded(seed).bytes(length as usize);
        arena.copy_in(offset, &payload);
        let mut checksum = Checksum::new(offset, length);
        let mut steps = 1;
        let value = loop {
            if let Some(value) = checksum.step(&arena, step) {
                break value;
            }
            steps += 1;
        };
        prop_assert_eq!(steps, length.div_ceil(step).max(1));
        prop_assert_eq!(value, xxh3_64(&payload));
        prop_assert_eq!(value, arena.checksum(offset, length));
    }
}
