/* SPDX-License-Identifier: Apache-2.0 */
/* What a client counted, as one JSON object. */
#include "load.h"

#define LAST_ERRNO 256
/* Microseconds in 64 buckets for each power of two: exact to 1.6 %, up to 18 minutes. */
#define SUB_BITS 6
#define BUCKETS (26 << SUB_BITS)

static uint64_t closed, moved;
static uint64_t errors[LAST_ERRNO], latencies[BUCKETS];

static unsigned int bucket_of(uint64_t microseconds)
{
	unsigned int shift;

	if (microseconds < 1 << SUB_BITS)
		return microseconds;
	shift = 63 - __builtin_clzll(microseconds) - SUB_BITS;
	return (shift << SUB_BITS) + (microseconds >> shift);
}

static uint64_t floor_of(unsigned int bucket)
{
	unsigned int shift;

	if (bucket < 2 << SUB_BITS)
		return bucket;
	shift = (bucket >> SUB_BITS) - 1;
	return (uint64_t)(bucket - (shift << SUB_BITS)) << shift;
}

static unsigned long long percentile(unsigned int percent)
{
	uint64_t seen = latencies[0];
	unsigned int bucket = 0;

	while (bucket < BUCKETS - 1 && seen * 100 < closed * percent)
		seen += latencies[++bucket];
	return floor_of(bucket);
}

void report_closed(uint64_t nanoseconds)
{
	unsigned int bucket = bucket_of(nanoseconds / 1000);

	closed++;
	latencies[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

void report_moved(uint64_t bytes)
{
	moved += bytes;
}

void report_error(int error)
{
	errors[error < LAST_ERRNO ? error : 0]++;
}

static void print_errors(void)
{
	const char *separator = "";

	printf("\"errors\": {");
	for (int i = 0; i < LAST_ERRNO; i++) {
		if (!errors[i])
			continue;
		printf("%s\"%s\": %llu", separator, strerrorname_np(i),
		       (unsigned long long)errors[i]);
		separator = ", ";
	}
	printf("}");
}

void print_report(uint64_t elapsed, uint64_t used)
{
	printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, ", elapsed / 1e9, used / 1e9);
	printf("\"connections\": %llu, \"bytes\": %llu, ", (unsigned long long)closed,
	       (unsigned long long)moved);
	printf("\"p50_us\": %llu, \"p99_us\": %llu, ", percentile(50), percentile(99));
	print_errors();
	printf("}\n");
}
