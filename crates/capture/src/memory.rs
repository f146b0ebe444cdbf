// SPDX-License-Identifier: Apache-2.0
//! Gives back to the kernel what the allocator keeps of a peak.

/// Has the C library's allocator give back the pages that nothing lies on any more; it keeps them otherwise, for the
/// next peak. Takes some milliseconds where much was freed. Does nothing with other allocators.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library's allocator has no other way in")]
    // SAFETY: malloc_trim(3) takes no pointer, may be called at any time, and is safe with other threads allocating.
    unsafe {
        libc::malloc_trim(0);
    }
}
