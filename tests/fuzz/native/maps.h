/* SPDX-License-Identifier: Apache-2.0 */
/* Maps with bcc's interface, and what was in them when the node was written down. */
#ifndef NATIVE_MAPS_H
#define NATIVE_MAPS_H

#define NATIVE_MAPS 128
#define NATIVE_NAME 32
#define NATIVE_USED 4096

/* The element of a hash; the value follows the key, which is padded. */
struct native_element {
	struct native_element *next;
	__u8 *key, *value;
};

/*
 * elements: of a hash; array: the elements of an array. first: what to restore. is_used: whether the
 * hash may differ from that; used: the same of elements of an array.
 */
struct native_map {
	const char *name, *type;
	__u32 key_size, value_size, max, count, is_used;
	struct native_element *elements, *first;
	__u8 *array, *first_array, *used;
};

static struct native_map *native_maps[NATIVE_MAPS];
static int native_map_count;
/* Elements of arrays: of a map, an index. */
static struct {
	struct native_map *map;
	__u32 index;
} native_used[NATIVE_USED];
static int native_used_count;
/* As with RCU: they may be used until the program ends. */
static struct native_element *native_gone;

static inline int native_is_array(const struct native_map *map)
{
	return strstr(map->type, "array") != NULL;
}

static void native_register(struct native_map *map)
{
	native_maps[native_map_count++] = map;
	if (!native_is_array(map))
		return;
	map->array = calloc(map->max, map->value_size);
	map->first_array = calloc(map->max, map->value_size);
	map->used = calloc(map->max, 1);
}

static struct native_element *native_element(const struct native_map *map, const void *key,
					     const void *value, struct native_element *next)
{
	struct native_element *made = malloc(sizeof(*made));

	made->next = next;
	made->key = memcpy(malloc(map->key_size), key, map->key_size);
	made->value = memcpy(malloc(map->value_size), value, map->value_size);
	return made;
}

static void native_free(struct native_element *gone)
{
	struct native_element *next;

	for (; gone; gone = next) {
		next = gone->next;
		free(gone->key);
		free(gone->value);
		free(gone);
	}
}

/* Whether the first bits of the data after the length are the same. */
static int native_has_prefix(const struct native_map *map, const __u8 *key, const __u8 *prefix)
{
	__u32 bits, wanted;

	memcpy(&bits, prefix, sizeof(bits));
	memcpy(&wanted, key, sizeof(wanted));
	if (bits > wanted || bits > 8 * (map->key_size - sizeof(bits)))
		return 0;
	for (__u32 bit = 0; bit < bits; bit++) {
		__u32 at = sizeof(bits) + bit / 8;

		if ((key[at] ^ prefix[at]) & 0x80 >> bit % 8)
			return 0;
	}
	return 1;
}

static struct native_element *native_longest(const struct native_map *map, const void *key)
{
	struct native_element *best = NULL;

	for (struct native_element *each = map->elements; each; each = each->next)
		if (native_has_prefix(map, key, each->key) &&
		    (!best || *(__u32 *)each->key > *(__u32 *)best->key))
			best = each;
	return best;
}

static struct native_element **native_place(struct native_map *map, const void *key)
{
	struct native_element **place = &map->elements;

	while (*place && memcmp((*place)->key, key, map->key_size))
		place = &(*place)->next;
	return place;
}

static void *native_array_lookup(struct native_map *map, __u32 index)
{
	if (index >= map->max)
		return NULL;
	if (!map->used[index]) {
		if (native_used_count == NATIVE_USED)
			abort();
		map->used[index] = 1;
		native_used[native_used_count].map = map;
		native_used[native_used_count++].index = index;
	}
	return map->array + (size_t)index * map->value_size;
}

static void *native_lookup(struct native_map *map, const void *key)
{
	struct native_element *found;

	if (native_is_array(map))
		return native_array_lookup(map, *(const __u32 *)key);
	map->is_used = 1;
	found = strcmp(map->type, "lpm_trie") ? *native_place(map, key) : native_longest(map, key);
	return found ? found->value : NULL;
}

static int native_delete(struct native_map *map, const void *key)
{
	struct native_element **place = native_place(map, key);
	struct native_element *gone = *place;

	if (!gone)
		return -1;
	*place = gone->next;
	gone->next = native_gone;
	native_gone = gone;
	map->is_used = 1;
	map->count--;
	return 0;
}

/* An LRU forgets the element that was made first. */
static int native_update(struct native_map *map, const void *key, const void *value)
{
	if (native_is_array(map)) {
		void *place = native_lookup(map, key);

		return place ? (memcpy(place, value, map->value_size), 0) : -1;
	}
	native_delete(map, key);
	if (map->count >= map->max) {
		struct native_element *last = map->elements;

		if (!strstr(map->type, "lru"))
			return -1;
		while (last->next)
			last = last->next;
		native_delete(map, last->key);
	}
	map->elements = native_element(map, key, value, map->elements);
	map->is_used = 1;
	map->count++;
	return 0;
}

static int native_insert(struct native_map *map, const void *key, const void *value)
{
	return native_lookup(map, key) ? -1 : native_update(map, key, value);
}

static void native_restore_hash(struct native_map *map)
{
	native_free(map->elements);
	map->elements = NULL;
	map->count = 0;
	map->is_used = 0;
	for (struct native_element *each = map->first; each; each = each->next) {
		map->elements = native_element(map, each->key, each->value, map->elements);
		map->count++;
	}
}

/* All is again as it was written down. */
static void native_restore(void)
{
	while (native_used_count) {
		struct native_map *map = native_used[--native_used_count].map;
		__u32 index = native_used[native_used_count].index;
		size_t place = (size_t)index * map->value_size;

		memcpy(map->array + place, map->first_array + place, map->value_size);
		map->used[index] = 0;
	}
	for (int at = 0; at < native_map_count; at++)
		if (native_maps[at]->is_used)
			native_restore_hash(native_maps[at]);
}

#define NATIVE_MAP(kind, key_t, leaf_t, map, size)                                                \
	static struct native_map native_of_##map = {                                              \
		.name = #map,                                                                     \
		.type = kind,                                                                     \
		.key_size = sizeof(key_t),                                                        \
		.value_size = sizeof(leaf_t),                                                     \
		.max = size,                                                                      \
	};                                                                                        \
	static leaf_t *native_##map##_lookup(const void *key)                                     \
	{                                                                                         \
		return native_lookup(&native_of_##map, key);                                      \
	}                                                                                         \
	static int native_##map##_update(const void *key, const void *value)                      \
	{                                                                                         \
		return native_update(&native_of_##map, key, value);                               \
	}                                                                                         \
	static int native_##map##_insert(const void *key, const void *value)                      \
	{                                                                                         \
		return native_insert(&native_of_##map, key, value);                               \
	}                                                                                         \
	static int native_##map##_delete(const void *key)                                         \
	{                                                                                         \
		return native_delete(&native_of_##map, key);                                      \
	}                                                                                         \
	__attribute__((constructor)) static void native_##map##_register(void)                    \
	{                                                                                         \
		native_register(&native_of_##map);                                                \
	}                                                                                         \
	static const struct {                                                                     \
		leaf_t *(*lookup)(const void *);                                                  \
		int (*update)(const void *, const void *), (*insert)(const void *, const void *); \
		int (*delete)(const void *);                                                      \
	} map = { native_##map##_lookup, native_##map##_update, native_##map##_insert,            \
		  native_##map##_delete }

#define BPF_TABLE_PINNED(type, key, leaf, name, size, ...) NATIVE_MAP(type, key, leaf, name, size)
#define BPF_ARRAY(name, leaf, size) NATIVE_MAP("array", int, leaf, name, size)
#define BPF_PERCPU_ARRAY(name, leaf, size) NATIVE_MAP("percpu_array", int, leaf, name, size)

#endif
